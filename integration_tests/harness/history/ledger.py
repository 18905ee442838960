# SPDX-License-Identifier: Apache-2.0
"""What clients were told about their changes, and whether a state of the cluster agrees with it.

Owns the bookkeeping of registers and topics. Does not know processes, clients or time.

A *register* is the config `description` of a topic. Its values are the numbers of its writes: 1, 2, ... One write is under way at a
time, so acknowledged numbers only rise. A write with an unknown outcome may take effect later. Its register is retired until its owner
knows that no request can be under way. So at the end a register shows its last acknowledged write, or an unknown write after it. An
older number means that a change was lost or carried out twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

PROBLEMS_MAX = 100
"""Number of problems that are kept as text; further ones are only counted."""


@dataclass(slots=True)
class Register:
    """One register. Values are numbers of writes; 0 is the state before the first."""

    topic: str
    sent: int = 0
    acknowledged: int = 0
    unknown: set[int] = field(default_factory=set[int])
    is_retired: bool = False

    def allowed(self) -> set[int]:
        """Return the values that it may show while no write is under way except those with an unknown outcome."""
        return {self.acknowledged} | self.unknown

    def acknowledge(self) -> None:
        """Note that the last write was acknowledged: it came after all others."""
        self.acknowledged = self.sent
        self.unknown.clear()

    def retire(self) -> None:
        """Note that the outcome of the last write is unknown."""
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
        """Note that a creation was acknowledged. The topic is a register from now on."""
        self.acknowledged_count += 1
        self.topics[topic] = topic_id
        self.registers[topic] = register = Register(topic)
        self._free.append(register)

    def topic_unknown(self, topic: str) -> None:
        """Note that it is unknown whether the topic was created."""
        self.unknown_count += 1
        self.unknown_topics.add(topic)

    def topic_repeated(self, topic: str) -> None:
        """Note that a creation was sent once and refused because the topic exists: it was carried out twice."""
        self.note(f"{topic}: created by a request that was sent once, and refused as being there already")
        self.unknown_topics.add(topic)

    def take_register(self) -> Register | None:
        """Return the register that has waited longest for a write, with the number of that write in `sent`; None: all are busy."""
        if not self._free:
            return None
        register = self._free.popleft()
        register.sent += 1
        return register

    def write_acknowledged(self, register: Register) -> None:
        """Note that the write under way was acknowledged."""
        self.acknowledged_count += 1
        register.acknowledge()
        self._free.append(register)

    def write_unknown(self, register: Register) -> None:
        """Note that it is unknown whether the write under way took effect, or when."""
        self.unknown_count += 1
        register.retire()

    def release(self, register: Register) -> None:
        """Free a retired register: no request to it can be under way, so its value is final."""
        register.is_retired = False
        self._free.append(register)

    def write_refused(self, register: Register) -> None:
        """Note that the write under way was refused. It never takes effect, and its number is used again."""
        self.refused_count += 1
        register.sent -= 1
        self._free.append(register)

    def note(self, problem: str) -> None:
        """Keep a problem."""
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(problem)

    def compare(self, topics: Mapping[str, bytes], values: Mapping[str, int]) -> list[str]:
        """Return the differences between a state of the cluster and this ledger.

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
