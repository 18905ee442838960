# SPDX-License-Identifier: Apache-2.0
"""The coordinator runtime: a replicated state machine over each partition of a compacted internal topic (`docs/coordinator.md`)."""

from __future__ import annotations
