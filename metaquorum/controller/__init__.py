# SPDX-License-Identifier: Apache-2.0
"""The controller: pure, event-sourced core that decides about brokers, topics, partitions.

Source: `docs/controller.md`.
"""

from __future__ import annotations
