# SPDX-License-Identifier: Apache-2.0
"""The metadata quorum: a Raft log of metadata records, and the controller that decides every change of metadata."""

from __future__ import annotations
