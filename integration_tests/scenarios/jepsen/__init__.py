# SPDX-License-Identifier: Apache-2.0
"""Producers and consumers under all nemeses at random, and the judgement of their history (`make jepsen`)."""

from __future__ import annotations
