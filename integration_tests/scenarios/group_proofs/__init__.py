# SPDX-License-Identifier: Apache-2.0
"""`make group-proofs`: a group of real processes under load and faults, and the judge of their journals."""

from __future__ import annotations
