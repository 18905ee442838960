# SPDX-License-Identifier: Apache-2.0
"""Background work over many logs, beside their owners: flush threads, scrub, repair.

Each has a side that belongs to the owner of the log (`LogScrub`, `LogRepair`) and one that any thread may run.
"""

from __future__ import annotations
