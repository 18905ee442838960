# SPDX-License-Identifier: Apache-2.0
"""One log: append, read, flush, truncation, opening, and its memory of epochs and producers.

Start at `partition_log`.
"""

from __future__ import annotations
