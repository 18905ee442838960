# SPDX-License-Identifier: Apache-2.0
"""The steps of a worker, and its end between two of them.

Everything that SQLAlchemy does on a connection is a step: begin, before and after each statement, commit, rollback, and the return of
the connection after that. The worker adds those around polls and transactions. So the library under test has no hook for the proof.
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass
from typing import Any

from lograft.offsets.table import DEFAULT_TABLE
from sqlalchemy import Engine, event


@dataclass(slots=True)
class Steps:
    """Counts steps, and ends or stops the process at one of them.

    Attributes:
        kill_at: number of the step, from 1, at which the process kills itself with SIGKILL; 0: never.
        stop_at: label of the step at which the process stops itself with SIGSTOP, once; empty: never.
        is_armed: False while `stop_at` is ignored.
    """

    kill_at: int = 0
    stop_at: str = ""
    is_armed: bool = False
    count: int = 0

    def reach(self, label: str) -> None:
        """Count a step. The parent reads its label from standard output."""
        self.count += 1
        if self.count == self.kill_at:
            say(f"killed {label}")
            os.kill(os.getpid(), signal.SIGKILL)
        if self.is_armed and label == self.stop_at:
            self.stop_at = ""
            say(f"stopped {label}")
            os.kill(os.getpid(), signal.SIGSTOP)

    def watch(self, engine: Engine) -> None:
        """Count what happens on the connections of an engine."""

        def before(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
            del connection, cursor
            self.reach(f"before {_kind(statement)}")

        def after(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
            del connection, cursor
            self.reach(f"after {_kind(statement)}")

        event.listen(engine, "begin", lambda _: self.reach("before begin"))
        event.listen(engine, "before_cursor_execute", before)
        event.listen(engine, "after_cursor_execute", after)
        event.listen(engine, "commit", lambda _: self.reach("before commit"))
        event.listen(engine, "rollback", lambda _: self.reach("before rollback"))
        event.listen(engine, "checkin", lambda *_: self.reach("connection back"))


def _kind(statement: str) -> str:
    """Return what a statement does, in two words."""
    verb = statement.split(None, 1)[0].lower()
    return f"{verb} of {'offsets' if DEFAULT_TABLE in statement else 'records'}"


def say(line: str) -> None:
    """Tell the parent something."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
