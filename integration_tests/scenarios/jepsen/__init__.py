# SPDX-License-Identifier: Apache-2.0
"""Producers and consumers under random nemeses of all kinds, and the judgement of their history (`make jepsen`)."""

from __future__ import annotations
