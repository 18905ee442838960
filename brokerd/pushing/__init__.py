# SPDX-License-Identifier: Apache-2.0
"""Pure core of one `Replicate` stream at the leader: routes, credits, whose turn it is, marks."""

from __future__ import annotations
