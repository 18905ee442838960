# SPDX-License-Identifier: Apache-2.0
"""Whether this process was forked from one in which gRPC was loaded, and who has to know of a fork.

Owns the hook that Python calls in a forked child. Loads neither gRPC nor a client: it has to be here before a program forks.
gRPC's C core does not survive a fork: its threads do not come along, and its locks stay as they were. Nobody can tell whether it was
used in the parent or only loaded, by Lograft or by others, so that loaded is enough. Source: ADR 17.
"""

from __future__ import annotations

import os
import sys
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

_C_CORE: Final = "grpc._cython.cygrpc"
_FORKED_WITHOUT_EXEC: Final = 0x40
"""Of the flags of a process in Linux (PF_FORKNOEXEC): it has run no program of its own since it was forked."""
_FLAGS_FIELD: Final = 6
"""Place of the flags in /proc/self/stat behind the name of the program, which ends with a parenthesis."""


class Forkable(Protocol):
    """Something that must know that it is in a forked child now."""

    def after_fork(self) -> None:
        """Refuse to work from now on; take no lock that the parent may have held."""
        ...


_forkables: weakref.WeakSet[Forkable] = weakref.WeakSet()
_was_forked_with_grpc = False


def may_use_grpc() -> bool:
    """Return False if gRPC's C core was loaded before this process was forked: it must not be touched here."""
    return not _was_forked_with_grpc


def on_fork(client: Forkable) -> None:
    """Have something told when it finds itself in a forked child."""
    _forkables.add(client)


def _after_fork_in_child() -> None:
    global _was_forked_with_grpc
    _was_forked_with_grpc = _was_forked_with_grpc or _C_CORE in sys.modules
    for client in list(_forkables):
        client.after_fork()


def _is_forked() -> bool:
    """Return whether this process was forked and has run no program of its own since, as far as the system tells."""
    with suppress(OSError, ValueError, IndexError):
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        return int(fields[_FLAGS_FIELD]) & _FORKED_WITHOUT_EXEC != 0
    return False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
    # A program that loads gRPC, forks, and only then loads Lograft: the hook comes too late.
    _was_forked_with_grpc = _C_CORE in sys.modules and _is_forked()
