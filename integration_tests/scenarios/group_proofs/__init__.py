# SPDX-License-Identifier: Apache-2.0
"""`make group-proofs`: a group of real processes under load, whose members and coordinator are hurt, and the judge of their journals."""

from __future__ import annotations
