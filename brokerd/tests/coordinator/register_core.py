# SPDX-License-Identifier: Apache-2.0
"""A small core for tests: registers with counters, a text of each, and leases that a tick ends.

A record says what a register is, never what to add, so it survives every compaction. The core itself counts what it has done: a
read-modify-write that saw too old a state shows as a number that was given twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from brokerd.coordinator.core import Decision, Record


@dataclass(frozen=True, slots=True)
class Increment:
    """Add one to a register, and put an id beside it; the response is the new number."""

    register: str
    by: str = ""
    lease_ms: int = 0
    padding_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove a register; the response is its last number."""

    register: str


@dataclass(frozen=True, slots=True)
class Read:
    """Return the number of a register, 0 without one."""

    register: str


@dataclass(frozen=True, slots=True)
class Fill:
    """Set many registers in one decision."""

    prefix: str
    count: int
    padding_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Break:
    """Make `decide` raise."""


RegisterCommand = Increment | Remove | Read | Fill | Break


class Register(NamedTuple):
    """What a register is: a number, who wrote it, how long its lease is, and padding. Number 0: removed."""

    name: str
    number: int
    by: str = ""
    lease_ms: int = 0
    padding_bytes: int = 0


class RegisterCodec:
    """Registers as text."""

    def encode(self, record: Register) -> Record:
        """Return the record of the log."""
        if record.number == 0:
            return Record(record.name.encode(), None)
        text = f"{record.number} {record.lease_ms} {record.by} "
        return Record(record.name.encode(), text.encode() + bytes(record.padding_bytes))

    def decode(self, record: Record) -> Register:
        """Return the register; raises for a record that it does not know."""
        if record.value is None:
            return Register(record.key.decode(), 0)
        number, lease_ms, by, padding = record.value.split(b" ", 3)
        return Register(record.key.decode(), int(number), by.decode(), int(lease_ms), len(padding))


class RegisterCore:
    """Registers by name.

    Attributes:
        registers: number and writer of each register.
        deadlines_ms: end of each lease; begins at the first tick, or with the record.
        tick_count: ticks so far.
    """

    def __init__(self) -> None:
        self.registers: dict[str, tuple[int, str]] = {}
        self.leases_ms: dict[str, int] = {}
        self.deadlines_ms: dict[str, int] = {}
        self.tick_count = 0
        self.now_ms: int | None = None

    def decide(self, command: RegisterCommand, now_ms: int) -> Decision[int, Register]:
        """Decide about a command."""
        self.now_ms = now_ms
        match command:
            case Increment():
                number = self.registers.get(command.register, (0, ""))[0] + 1
                record = Register(command.register, number, command.by, command.lease_ms, command.padding_bytes)
                return Decision((record,), number)
            case Remove():
                number = self.registers.get(command.register, (0, ""))[0]
                return Decision((Register(command.register, 0),) if number else (), number)
            case Read():
                return Decision((), self.registers.get(command.register, (0, ""))[0])
            case Fill():
                records = [
                    Register(f"{command.prefix}{at}", 1, padding_bytes=command.padding_bytes)
                    for at in range(command.count)
                ]
                return Decision(tuple(records), command.count)
            case Break():
                raise RuntimeError("asked to break")

    def replay(self, record: Register) -> None:
        """Apply a register."""
        if record.by == "poison":
            raise RuntimeError("poison")
        self.deadlines_ms.pop(record.name, None)
        self.leases_ms.pop(record.name, None)
        if record.number == 0:
            self.registers.pop(record.name, None)
            return
        self.registers[record.name] = (record.number, record.by)
        if record.lease_ms:
            self.leases_ms[record.name] = record.lease_ms
            if self.now_ms is not None:
                self.deadlines_ms[record.name] = self.now_ms + record.lease_ms

    def deadline_ms(self) -> int | None:
        """Return the end of the first lease."""
        return min(self.deadlines_ms.values(), default=None)

    def tick(self, now_ms: int) -> Decision[int, Register] | None:
        """Remove the registers whose lease is over."""
        self.tick_count += 1
        if self.now_ms is None:
            for name, lease_ms in self.leases_ms.items():
                self.deadlines_ms[name] = now_ms + lease_ms
        self.now_ms = now_ms
        over = [name for name, at_ms in self.deadlines_ms.items() if at_ms <= now_ms]
        return Decision(tuple(Register(name, 0) for name in over), len(over)) if over else None


def register_of(command: RegisterCommand) -> str | None:
    """Return the scope of a command: its register; None for one that concerns many."""
    return command.register if isinstance(command, Increment | Remove | Read) else None
