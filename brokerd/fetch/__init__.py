# SPDX-License-Identifier: Apache-2.0
"""Pure core of one fetch stream: routes, credit, fairness, marks."""

from __future__ import annotations
