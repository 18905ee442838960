# SPDX-License-Identifier: Apache-2.0
"""Files of the log engine: what a disk promises, and the ways in which files are written so that a crash leaves old or new.

Start at `disk` (the promises) and `posix` (the real one). Nothing here knows what a record is.
"""

from __future__ import annotations
