# SPDX-License-Identifier: Apache-2.0
"""Switches of Python's cyclic garbage collector: off during large loads, and blind to what a server keeps for good.

Owns both switches. Only the owner of a process may call `freeze_started`: it also freezes the objects of everything else in it.
"""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def collector_off() -> Generator[None]:
    """Keep the collector off during the block. A load makes no garbage, and a search for it costs more than the load."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def freeze_started() -> None:
    """Collect once, then exclude every object that exists from all later collections. For a server that has just started."""
    gc.collect()
    gc.freeze()
