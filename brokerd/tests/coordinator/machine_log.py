# SPDX-License-Identifier: Apache-2.0
"""A machine over a log in memory, driven step by step, for its unit tests."""

from __future__ import annotations

from collections.abc import Sequence

from lograft.wire.codes import ErrorCode

from brokerd.coordinator.core import Record
from brokerd.coordinator.machine import Answer, PartitionMachine, State
from brokerd.coordinator.prefix import LogPiece
from brokerd.coordinator.unserved import Unserved, UnservedReason, moved_to
from brokerd.failure import Failure, LeaderPlace
from brokerd.tests.coordinator.register_core import (
    Register,
    RegisterCodec,
    RegisterCommand,
    RegisterCore,
    register_of,
)

TOO_FEW = Failure(code=ErrorCode.NOT_ENOUGH_REPLICAS, message="too few in sync", retry_after_ms=250)
MOVED = moved_to("g-0", LeaderPlace(leader_id=2, leader_epoch=2, host="b2", port=9))


class MachineLog:
    """A machine that leads, and the records of its log.

    Attributes:
        machine: the machine.
        log: every appended record.
        appends: number of records of each append.
        answered: the response or the reason of each command, by its token.
        ticks: responses of ticks.
        now_ms: the time.
    """

    def __init__(self, log: Sequence[Record] = (), *, scoped: bool = True, lead: bool = True) -> None:
        self.machine: PartitionMachine[RegisterCommand, int, Register] = PartitionMachine(
            "g-0", new_core=RegisterCore, codec=RegisterCodec(), scope_of=register_of if scoped else None
        )
        self.log = list(log)
        self.appends: list[int] = []
        self.answered: dict[int, int | UnservedReason] = {}
        self.ticks: list[int] = []
        self.now_ms = 1_000
        self._token = 0
        if lead:
            self.lead(1)

    @property
    def core(self) -> RegisterCore:
        """The core of the active machine."""
        core = self.machine.core
        assert isinstance(core, RegisterCore)
        return core

    def lead(self, leader_epoch: int, *, committed: int | None = None) -> None:
        """Begin a leadership, load the log, and take the first tick."""
        high_watermark = len(self.log) if committed is None else committed
        self.machine.lead(leader_epoch=leader_epoch, log_end_offset=len(self.log), high_watermark=high_watermark)
        self.load()
        if self.machine.state is State.ACTIVE:
            self.turn()

    def load(self) -> None:
        """Load the whole log."""
        self.machine.begin_load(0, is_snapshot=False)
        if self.log:
            piece = LogPiece(0, len(self.log), range(len(self.log)), self.log)
            assert self.machine.takes(piece)
            if not self.machine.load(piece.records):
                return
        self.machine.note_loaded(len(self.log))

    def submit(self, command: RegisterCommand, size_bytes: int = 0) -> int:
        """Submit a command, and return its token."""
        self._token += 1
        unserved = self.machine.submit(self._token, command, size_bytes=size_bytes)
        if unserved is not None:
            self.answered[self._token] = unserved.reason
        return self._token

    def begin(self) -> list[Record]:
        """Begin a turn, and return its records."""
        return list(self.machine.begin_turn(self.now_ms))

    def turn(self) -> None:
        """Take one turn, whose append is accepted."""
        records = self.begin()
        if records:
            self.accept(records)
        self.note()

    def turns(self) -> None:
        """Take turns until the queue is empty."""
        while self.machine.has_work:
            self.turn()

    def accept(self, records: Sequence[Record]) -> None:
        """Append the records of a turn."""
        base_offset = len(self.log)
        self.log += records
        self.appends.append(len(records))
        self.machine.accept_turn(base_offset)

    def commit(self) -> None:
        """Commit everything."""
        self.machine.advance(len(self.log))
        self.note()

    def resign(self, unserved: Unserved = MOVED) -> None:
        """End the leadership."""
        self.machine.resign(unserved)
        self.note()

    def note(self) -> list[Answer[int]]:
        """Take the answers; no command may have two."""
        answers = self.machine.take_answers()
        for answer in answers:
            if answer.token is None:
                assert answer.response is not None
                self.ticks.append(answer.response)
                continue
            assert answer.token not in self.answered, f"command {answer.token} has two answers"
            got = answer.response if answer.unserved is None else answer.unserved.reason
            assert got is not None
            self.answered[answer.token] = got
        return answers
