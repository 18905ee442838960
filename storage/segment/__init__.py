# SPDX-License-Identifier: Apache-2.0
"""One segment of a log: its batches, what finds them (indexes), what proves them (seal), and which of its bytes are damaged.

Start at `segment`. Nothing here knows leader epochs, producers, or where a log begins and ends.
"""

from __future__ import annotations
