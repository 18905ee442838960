# SPDX-License-Identifier: Apache-2.0
"""What clients were told about their changes, and whether a state of the cluster agrees with it.

Owns the bookkeeping of registers and topics. Must not know processes, clients or time.

A *register* is the config `description` of a topic; its values are the numbers of its writes, 1, 2, ... One write is under
way at a time, so acknowledged numbers only rise. A write with an unknown outcome may take effect later: its register is
retired, until its owner knows that no request can still be under way. So at the end a register shows its last acknowledged
write, or an unknown one that came after it, and nothing else: an older number is a lost change or one carried out twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

PROBLEMS_MAX = 100
"""Problems that are kept as text; more are only counted."""


@dataclass(slots=True)
class Register:
    """One register: numbers of writes, 0 is the state before the first."""

    topic: str
    sent: int = 0
    acknowledged: int = 0
    unknown: set[int] = field(default_factory=set[int])
    is_retired: bool = False

    def allowed(self) -> set[int]:
        """Numbers that it may show when nothing is under way but what has an unknown outcome."""
        return {self.acknowledged} | self.unknown

    def acknowledge(self) -> None:
        """The last write was acknowledged: it came after all others."""
        self.acknowledged = self.sent
        self.unknown.clear()

    def retire(self) -> None:
        """The outcome of the last write is unknown."""
        self.unknown.add(self.sent)
        self.is_retired = True


@dataclass(slots=True)
class Ledger:
    """Topics and registers of one run."""

    topics: dict[str, bytes] = field(default_factory=dict[str, bytes])
    unknown_topics: set[str] = field(default_factory=set[str])
    registers: dict[str, Register] = field(default_factory=dict[str, Register])
    problems: list[str] = field(default_factory=list[str])
    acknowledged_count: int = 0
    unknown_count: int = 0
    refused_count: int = 0
    _free: deque[Register] = field(default_factory=deque[Register])

    def topic_acknowledged(self, topic: str, topic_id: bytes) -> None:
        """A creation was acknowledged; the topic is a register from now on."""
        self.acknowledged_count += 1
        self.topics[topic] = topic_id
        self.registers[topic] = register = Register(topic)
        self._free.append(register)

    def topic_unknown(self, topic: str) -> None:
        """It is unknown whether the topic was created."""
        self.unknown_count += 1
        self.unknown_topics.add(topic)

    def topic_repeated(self, topic: str) -> None:
        """A name that was sent once was refused as being there already: somebody carried the creation out twice."""
        self.note(f"{topic}: created by a request that was sent once, and refused as being there already")
        self.unknown_topics.add(topic)

    def take_register(self) -> Register | None:
        """Return the register that waits longest for a write, with the number of that write in `sent`; None: all busy."""
        if not self._free:
            return None
        register = self._free.popleft()
        register.sent += 1
        return register

    def write_acknowledged(self, register: Register) -> None:
        """The write under way was acknowledged."""
        self.acknowledged_count += 1
        register.acknowledge()
        self._free.append(register)

    def write_unknown(self, register: Register) -> None:
        """It is unknown whether the write under way took effect, or when."""
        self.unknown_count += 1
        register.retire()

    def release(self, register: Register) -> None:
        """No request to a retired register can be under way any more: whatever it shows is settled, and it is free again."""
        register.is_retired = False
        self._free.append(register)

    def write_refused(self, register: Register) -> None:
        """The write under way was refused: it did not and will not take effect, and its number is used again."""
        self.refused_count += 1
        register.sent -= 1
        self._free.append(register)

    def note(self, problem: str) -> None:
        """Keep a problem."""
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(problem)

    def compare(self, topics: Mapping[str, bytes], values: Mapping[str, int]) -> list[str]:
        """Return what a state of the cluster lacks or has too much.

        Args:
            topics: id of each topic by name.
            values: number that each register shows, by topic.
        """
        found: list[str] = []
        for topic, topic_id in self.topics.items():
            if topic not in topics:
                found.append(f"LOST topic {topic}")
            elif topics[topic] != topic_id:
                found.append(f"CREATED TWICE: topic {topic} has another id than was acknowledged")
        strangers = topics.keys() - self.topics.keys() - self.unknown_topics
        found += [f"topic {topic} was never asked for, or was refused" for topic in sorted(strangers)]
        if len(set(topics.values())) != len(topics):
            found.append("two topics have one id")
        for topic, register in self.registers.items():
            value = values.get(topic)
            if value not in register.allowed():
                found.append(f"register {topic} shows {value}, may show {sorted(register.allowed())}")
        return found
