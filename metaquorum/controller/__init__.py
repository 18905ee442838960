# SPDX-License-Identifier: Apache-2.0
"""The controller: a pure, event-sourced core that decides about brokers, topics and partitions.

Source: `docs/controller.md`.
"""

from __future__ import annotations
