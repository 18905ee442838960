# SPDX-License-Identifier: Apache-2.0
"""Reads and writes that go straight to one voter, leader or not, and their permitted results.

A read must be refused or show at least what was acknowledged before it was sent. An acknowledged write must exist at the end, and a
refused one must not. For that, the ledger of the probes' own registers is compared together with that of the load.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from lograft.errors import LograftError, OutcomeUnknownError
from lograft.types import ConfigResource

from integration_tests.harness.history.ledger import Ledger, Register
from integration_tests.harness.load.metadata_load import CONFIG
from integration_tests.scenarios.quorum_proofs.direct import Answer, Call, Voter
from integration_tests.scenarios.quorum_proofs.scene import Scene

CALL_TIMEOUT_S = 5.0
FAILED_CREATIONS_MAX = 100


@dataclass(slots=True)
class Probes:
    """Registers that only the proof writes, and the results of its calls."""

    ledger: Ledger = field(default_factory=Ledger)
    reads: Counter[str] = field(default_factory=Counter[str])
    writes: Counter[str] = field(default_factory=Counter[str])

    def create(self, scene: Scene, count: int) -> list[str]:
        """Create registers through a broker. A failed creation is noted as unknown, and another register is created."""
        names: list[str] = []
        while len(names) < count:
            topic = f"probe-{len(self.ledger.topics) + len(self.ledger.unknown_topics):05d}"
            try:
                created = scene.admin.create_topic(topic)
            except LograftError as error:
                self.ledger.topic_unknown(topic)
                if len(self.ledger.unknown_topics) > FAILED_CREATIONS_MAX:
                    raise RuntimeError("too many creations failed") from error
            else:
                self.ledger.topic_acknowledged(topic, created.topic_id)
                names.append(topic)
        return names

    def write_by_leader(self, scene: Scene, topics: Sequence[str]) -> None:
        """Change registers through a broker, in the epoch of the present leader."""
        for topic in topics:
            register = self.ledger.registers[topic]
            if register.is_retired:
                continue
            register.sent += 1
            try:
                scene.admin.alter_configs({ConfigResource.topic(topic): {CONFIG: str(register.sent)}})
            except OutcomeUnknownError:
                register.retire()
            except LograftError:
                register.sent -= 1
            else:
                register.acknowledge()

    def note_read(self, topic: str, at_least: int, answer: Answer) -> None:
        """Judge a read that was sent when `at_least` was acknowledged."""
        self.reads["answered" if answer.value is not None else answer.refusal] += 1
        if answer.value is not None and answer.value < at_least:
            self.ledger.note(f"STALE: {topic} read as {answer.value} after {at_least} was acknowledged")

    def note_write(self, register: Register, answer: Answer) -> None:
        """Note the answer to a direct write."""
        self.writes["acknowledged" if answer.value is not None else answer.refusal] += 1
        if answer.value is not None:
            register.acknowledge()
        elif answer.is_certain:
            register.sent -= 1
        else:
            register.retire()


def send(
    probes: Probes, voter: Voter, readers: Sequence[str], writers: Sequence[str], *, timeout_s: float = CALL_TIMEOUT_S
) -> list[tuple[str, int, Call]]:
    """Send a read of each of `readers` and a write of each of `writers`. A read is returned with the number that it must show."""
    calls: list[tuple[str, int, Call]] = []
    for topic in readers:
        at_least = probes.ledger.registers[topic].acknowledged
        calls.append((topic, at_least, voter.read(topic, timeout_s=timeout_s)))
    for topic in writers:
        register = probes.ledger.registers[topic]
        if not register.is_retired:
            register.sent += 1
            calls.append((topic, -1, voter.write(topic, register.sent, timeout_s=timeout_s)))
    return calls


def take(probes: Probes, calls: Sequence[tuple[str, int, Call]]) -> set[str]:
    """Wait for the answers, judge them, and return the refusals."""
    refusals: set[str] = set()
    for topic, at_least, call in calls:
        answer = call.answer()
        refusals.add(answer.refusal)
        if at_least < 0:
            probes.note_write(probes.ledger.registers[topic], answer)
        else:
            probes.note_read(topic, at_least, answer)
    return refusals


def adopt(scene: Scene, probes: Probes) -> None:
    """Add the registers of the probes to the ledger of the load, which has ended, for the last comparison."""
    scene.load.stop()
    ledger = scene.load.ledger
    ledger.topics |= probes.ledger.topics
    ledger.unknown_topics |= probes.ledger.unknown_topics
    ledger.registers |= probes.ledger.registers
    ledger.problems += probes.ledger.problems
