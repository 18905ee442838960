# SPDX-License-Identifier: Apache-2.0
"""Python's cyclic collector around large loads: off while one goes on, and blind to what a server keeps for good.

Owns both switches. `freeze_started` is for the owner of a process only: what another program has made is not ours to freeze.
"""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def collector_off() -> Generator[None]:
    """Keep the collector off for the length of the block: a load makes no garbage, and looking for it costs more than the load."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def freeze_started() -> None:
    """Collect once, then leave everything that a started server has made out of all later collections."""
    gc.collect()
    gc.freeze()
