# SPDX-License-Identifier: Apache-2.0
"""Informs clients of a fork, and holds forks off while the modules of a client load.

It owns the hooks that Python calls around a fork. It loads no client, because it must be loaded before a program forks.
Source: ADR 17.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

LOAD_TIMEOUT_S: Final = 10.0
"""Seconds that a fork waits while another thread loads modules of a client."""

T = TypeVar("T")

_after_fork: weakref.WeakKeyDictionary[Any, Callable[[Any], None]] = weakref.WeakKeyDictionary()
"""What to call, by object. The functions are those of classes, so that they keep no object alive."""
_loading = threading.RLock()


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
    global _loading
    _loading = threading.RLock()
    for client, after_fork in list(_after_fork.items()):
        after_fork(client)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
