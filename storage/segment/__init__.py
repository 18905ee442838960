# SPDX-License-Identifier: Apache-2.0
"""One segment of a log: its batches, its indexes, its seal, and its damaged bytes.

Start at `segment`. Nothing here knows leader epochs, producers, or where a log begins and ends.
"""

from __future__ import annotations
