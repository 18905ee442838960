# SPDX-License-Identifier: Apache-2.0
"""Mutated input at the public port of a broker and at the internal ports of combined servers (`make fuzz`)."""

from __future__ import annotations
