# SPDX-License-Identifier: Apache-2.0
"""Background work over many logs, beside their owners: flush threads, scrub, repair.

Scrub and repair each have an owner's side (`LogScrub`, `LogRepair`) and a side that any thread may run.
"""

from __future__ import annotations
