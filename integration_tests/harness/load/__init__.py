# SPDX-License-Identifier: Apache-2.0
"""Clients at work on a cluster: producers and consumers of records, and clients that change metadata."""

from __future__ import annotations
