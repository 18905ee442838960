# SPDX-License-Identifier: Apache-2.0
"""A rebalance storm: processes of the tested program join and leave a group, crash and stall, by a seed.

A member is a process of the tested program itself, so that what is tested is how the program takes a rebalance. The storm
knows nothing of groups: it starts processes and signals them.
"""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from lograft.testing.errors import ClusterError
from lograft.testing.plan import Act, Step

LEAVE_WAIT_S: Final = 30.0
"""Seconds that a member may take to end when it is asked to."""

LOG_TAIL_BYTES: Final = 4_000


class MemberFailedError(ClusterError):
    """A member ended by itself, or did not end when it was asked to. The message has the end of what it printed."""


class RebalanceStorm:
    """A storm over the processes of one command; a context manager that ends them all.

    Args:
        command: returns the command of a member, from its number. Several members must be able to run at once.
        plan: the steps, as `storm_plan` gives them.
        directory: directory for what the members print, in `member-N.log`.

    Attributes:
        done: the steps that have been carried out.
    """

    def __init__(self, command: Callable[[int], Sequence[str]], plan: Sequence[Step], *, directory: str | Path) -> None:
        self._command = command
        self._plan = plan
        self._directory = Path(directory)
        self._members: dict[int, subprocess.Popen[bytes]] = {}
        self.done: list[Step] = []

    @property
    def members(self) -> list[int]:
        """Numbers of the members that run."""
        return sorted(self._members)

    def run(self) -> None:
        """Carry out all steps that are left. The members that remain keep running until `stop`.

        Raises:
            MemberFailedError: a member failed. The steps so far are in `done`.
        """
        pause = threading.Event()
        for step in self._plan[len(self.done) :]:
            pause.wait(step.pause_ms / 1000)
            self._check()
            self._carry_out(step, pause)
            self.done.append(step)

    def _carry_out(self, step: Step, pause: threading.Event) -> None:
        if step.act is Act.JOIN:
            self._join(step.member)
            return
        member = self._members[step.member]
        if step.act is Act.STALL:
            member.send_signal(signal.SIGSTOP)
            try:
                pause.wait(step.stall_ms / 1000)
            finally:
                member.send_signal(signal.SIGCONT)
        elif step.act is Act.CRASH:
            del self._members[step.member]
            member.kill()
            member.wait()
        else:
            self._leave(step.member)

    def _join(self, number: int) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        with self._log_path(number).open("ab") as log:
            self._members[number] = subprocess.Popen(
                list(self._command(number)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # A session of its own: Ctrl-C goes to the tests alone, and `stop` ends the members.
                start_new_session=True,
            )

    def _leave(self, number: int) -> None:
        member = self._members[number]
        member.terminate()
        try:
            status = member.wait(LEAVE_WAIT_S)
        except subprocess.TimeoutExpired:
            raise MemberFailedError(
                f"member {number} has not ended {LEAVE_WAIT_S:.0f} s after SIGTERM\n{self._tail(number)}"
            ) from None
        del self._members[number]
        if status not in (0, -signal.SIGTERM):
            raise MemberFailedError(f"member {number} left with status {status}\n{self._tail(number)}")

    def _check(self) -> None:
        for number, member in self._members.items():
            status = member.poll()
            if status is not None:
                raise MemberFailedError(f"member {number} ended by itself with status {status}\n{self._tail(number)}")

    def leave(self) -> None:
        """Ask all members that run to end, one after the other, and wait for each.

        Raises:
            MemberFailedError: a member failed.
        """
        self._check()
        for number in self.members:
            self._leave(number)

    def stop(self) -> None:
        """Kill all members that run. Idempotent."""
        while self._members:
            _, member = self._members.popitem()
            member.kill()
            member.wait()

    def _log_path(self, number: int) -> Path:
        return self._directory / f"member-{number}.log"

    def _tail(self, number: int) -> str:
        return self._log_path(number).read_text(errors="replace")[-LOG_TAIL_BYTES:]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
