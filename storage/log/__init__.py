# SPDX-License-Identifier: Apache-2.0
"""One log: what is appended, read, flushed and cut, how it is opened, and what it remembers of epochs and producers.

Start at `partition_log`.
"""

from __future__ import annotations
