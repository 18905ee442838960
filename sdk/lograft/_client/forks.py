# SPDX-License-Identifier: Apache-2.0
"""Tells whether gRPC was loaded before this process was forked, and informs clients of a fork.

It owns the hooks that Python calls around a fork. It loads neither gRPC nor a client, because it must be loaded before a
program forks. gRPC's C core does not survive a fork: the child lacks its threads, and its locks stay as they were. The child
cannot find out whether the parent used gRPC or only loaded it, through Lograft or otherwise. So loading counts as use. Source:
ADR 17.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeVar

_C_CORE: Final = "grpc._cython.cygrpc"
_FORKED_WITHOUT_EXEC: Final = 0x40
"""Process flag PF_FORKNOEXEC of Linux: the process has executed no program since it was forked."""
_FLAGS_FIELD: Final = 6
"""Index of the flags in /proc/self/stat, counted after the program name, which ends with a parenthesis."""


LOAD_TIMEOUT_S: Final = 10.0
"""Seconds that a fork waits while another thread loads modules of a client."""

T = TypeVar("T")

_after_fork: weakref.WeakKeyDictionary[Any, Callable[[Any], None]] = weakref.WeakKeyDictionary()
"""What to call, by object. The functions are those of classes, so that they keep no object alive."""
_was_forked_with_grpc = False
_loading = threading.RLock()


def may_use_grpc() -> bool:
    """Return False if gRPC's C core was loaded before this process was forked. This process must not touch it then."""
    return not _was_forked_with_grpc


def on_fork(client: T, after_fork: Callable[[T], None]) -> None:
    """Call `after_fork(client)` in each forked child, as long as the client exists.

    Args:
        client: an object that must know when it is in a forked child.
        after_fork: function of its class that makes it refuse to work. It must not take a lock that the parent may have held.
    """
    _after_fork[client] = after_fork


@contextmanager
def loading() -> Generator[None]:
    """Hold off forks by other threads while this one loads the modules of a client, and gRPC with them.

    Python locks a module while a thread loads it. A child that was forked in the meantime would wait for ever for the lock of a
    thread that it does not have.
    """
    with _loading:
        yield


def _before_fork() -> None:
    _loading.acquire(timeout=LOAD_TIMEOUT_S)


def _after_fork_in_parent() -> None:
    # It is not this thread's if the fork did not wait any longer.
    with suppress(RuntimeError):
        _loading.release()


def _after_fork_in_child() -> None:
    global _was_forked_with_grpc, _loading
    _loading = threading.RLock()
    _was_forked_with_grpc = _was_forked_with_grpc or _C_CORE in sys.modules
    for client, after_fork in list(_after_fork.items()):
        after_fork(client)


def _is_forked() -> bool:
    """Return whether this process was forked and has executed no program since; False if the system does not tell."""
    with suppress(OSError, ValueError, IndexError):
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        return int(fields[_FLAGS_FIELD]) & _FORKED_WITHOUT_EXEC != 0
    return False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
    # Covers a program that loads gRPC, forks, and imports Lograft only in the child, after the fork that the hook would see.
    _was_forked_with_grpc = _C_CORE in sys.modules and _is_forked()
