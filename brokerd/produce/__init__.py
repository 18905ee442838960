# SPDX-License-Identifier: Apache-2.0
"""Pure core of one produce stream: routes, batch numbers, in-flight limits, cumulative receipts."""

from __future__ import annotations
