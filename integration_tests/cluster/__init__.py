# SPDX-License-Identifier: Apache-2.0
"""Real server processes for tests: start, kill, pause, restart."""

from __future__ import annotations
