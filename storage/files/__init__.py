# SPDX-License-Identifier: Apache-2.0
"""Files of the log engine: what a disk guarantees, and ways to write a file so that a crash leaves the old or the new one.

Start at `disk` (the guarantees) and `posix` (the real disk). Nothing here knows what a record is.
"""

from __future__ import annotations
