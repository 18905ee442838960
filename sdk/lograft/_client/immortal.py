# SPDX-License-Identifier: Apache-2.0
"""Objects that nothing may destroy, not even the end of the interpreter.

In a forked child these are the parent's channels, calls and loops. Parent and child share the kernel's list of watched sockets
(epoll), so a destructor that closes a connection in the child would make the parent deaf to it. The end of the process frees
their memory.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

_count_up: Any = None
# Some builds of Python lack ctypes, and PyPy has no such function.
with suppress(ImportError, AttributeError):
    from ctypes import py_object, pythonapi

    _count_up = pythonapi.Py_IncRef
    _count_up.argtypes = [py_object]
    _count_up.restype = None

_kept: Final[list[object]] = []


def keep_for_ever(kept: object) -> None:
    """Keep an object and everything it refers to. Takes no lock and imports nothing, so it can run right after a fork."""
    _kept.append(kept)
    if _count_up is not None:
        _count_up(kept)
