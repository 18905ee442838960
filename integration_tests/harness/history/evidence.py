# SPDX-License-Identifier: Apache-2.0
"""The evidence of a history for each partition: who wrote which value, what is at which offset, who read what and when.

Owns one pass over the events. It judges only what needs no knowledge of the whole history: two values at one offset, one value at two
offsets, a consumer that goes back. Does not know files or clusters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from integration_tests.harness.history.events import Event, Kind, Type


@dataclass(frozen=True, slots=True, kw_only=True)
class Anomaly:
    """Something that no correct history can show."""

    name: str
    partition: str
    text: str

    def __str__(self) -> str:
        return f"{self.name}, {self.partition}: {self.text}"


@dataclass(slots=True)
class Write:
    """One value of a send. `offset` comes from its receipt. `type` stays INVOKE, which means unknown, without a completion."""

    op: int
    process: str
    invoked_ns: int
    type: Type = Type.INVOKE
    offset: int | None = None

    @property
    def is_unknown(self) -> bool:
        """Return True if the value may or may not be in the log."""
        return self.type in (Type.INVOKE, Type.INFO)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Two offsets that a consumer read one after the other, with others between them. It is a skip if any of those holds a record."""

    name: str
    process: str
    op: int
    after: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EndAnswer:
    """An answer that a process got about the end of a partition."""

    process: str
    op: int
    invoked_ns: int
    end_offset: int


@dataclass(slots=True)
class PartitionEvidence:
    """The evidence of one partition.

    Attributes:
        writes: writes by value, in the order of invocation.
        log: value at each offset, from receipts and reads; the first one reported.
        places: offset of each value; the first one reported.
        read: values that any process read.
        final: values of the last whole read, with their offsets; None: there was none.
        final_start: first offset of that read.
        final_end: end of that read, exclusive.
        acknowledged: (time, offset) of receipts, by time.
        ends: answers about the end.
        steps: steps of consumers over offsets.
    """

    writes: dict[str, Write] = field(default_factory=dict[str, Write])
    log: dict[int, str] = field(default_factory=dict[int, str])
    places: dict[str, int] = field(default_factory=dict[str, int])
    read: set[str] = field(default_factory=set[str])
    final: dict[str, int] | None = None
    final_start: int = 0
    final_end: int = 0
    acknowledged: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    ends: list[EndAnswer] = field(default_factory=list[EndAnswer])
    steps: list[Step] = field(default_factory=list[Step])


class Evidence:
    """One pass over the events of a history.

    Attributes:
        partitions: evidence by partition.
        anomalies: the anomalies found during the pass.
        counts: operations by kind and type.
    """

    def __init__(self, events: Iterable[Event]) -> None:
        self.partitions: dict[str, PartitionEvidence] = {}
        self.anomalies: list[Anomaly] = []
        self.counts: Counter[str] = Counter()
        self._sends: dict[int, Event] = {}
        self._invoked_ns: dict[int, int] = {}
        self._positions: dict[tuple[str, str], int] = {}
        for event in events:
            self._take(event)

    def of(self, partition: str) -> PartitionEvidence:
        """Return the evidence of a partition."""
        found = self.partitions.get(partition)
        if found is None:
            found = self.partitions[partition] = PartitionEvidence()
        return found

    def _take(self, event: Event) -> None:
        if event.type is Type.INVOKE:
            self._invoke(event)
            return
        self.counts[f"{event.kind.value} {event.type.value}"] += 1
        if event.kind is Kind.SEND:
            self._end_send(event)
            return
        invoked_ns = self._invoked_ns.pop(event.op, event.time_ns)
        if event.kind is Kind.ASSIGN:
            self._assign(event)
        elif event.kind is Kind.POLL:
            self._poll(event)
        elif event.kind is Kind.READ and event.type is Type.OK:
            self._read(event)
        elif event.kind is Kind.END and event.type is Type.OK:
            for partition, end in event.offsets_by_partition.items():
                answer = EndAnswer(process=event.process, op=event.op, invoked_ns=invoked_ns, end_offset=end)
                self.of(partition).ends.append(answer)

    def _invoke(self, event: Event) -> None:
        if event.kind is not Kind.SEND:
            self._invoked_ns[event.op] = event.time_ns
            return
        self._sends[event.op] = event
        writes = self.of(event.partition).writes
        for value in event.values:
            assert value not in writes, f"a value is sent once: {value}"
            writes[value] = Write(event.op, event.process, event.time_ns)

    def _end_send(self, event: Event) -> None:
        sent = self._sends.pop(event.op)
        found = self.of(sent.partition)
        offsets = event.offsets or [None] * len(sent.values)
        last: int | None = None
        for value, offset in zip(sent.values, offsets, strict=True):
            write = found.writes[value]
            write.type, write.offset = event.type, offset
            if offset is None:
                continue
            # Some values of an unknown send may have been acknowledged.
            write.type = Type.OK
            found.acknowledged.append((event.time_ns, offset))
            self._place(sent.partition, found, offset, value, f"the receipt of op {event.op}")
            if last is not None and offset <= last:
                self._note(
                    "internal nonmonotonic send",
                    sent.partition,
                    f"op {event.op} of {event.process}: {value} at {offset}, the one before it at {last}",
                )
            last = offset

    def _assign(self, event: Event) -> None:
        for key in [key for key in self._positions if key[0] == event.process]:
            del self._positions[key]
        if event.type is Type.OK:
            for partition, offset in event.offsets_by_partition.items():
                self._positions[event.process, partition] = offset - 1

    def _poll(self, event: Event) -> None:
        """Note the records of a poll, whatever its outcome."""
        for partition, records in event.records.items():
            found = self.of(partition)
            self._see(partition, found, records, event)
            name = ""
            last = self._positions.get((event.process, partition))
            for offset, _ in records:
                if last is not None and offset <= last:
                    text = f"op {event.op} of {event.process} reads {offset} after {last}"
                    self._note(f"{name}nonmonotonic poll", partition, text)
                elif last is not None and offset > last + 1:
                    step = Step(name=f"{name}poll skip", process=event.process, op=event.op, after=last, offset=offset)
                    found.steps.append(step)
                last, name = offset, "internal "
            if last is not None:
                self._positions[event.process, partition] = last

    def _read(self, event: Event) -> None:
        found = self.of(event.partition)
        records = event.records.get(event.partition, ())
        self._see(event.partition, found, records, event)
        found.final = {value: offset for offset, value in records}
        found.final_start = records[0][0] if records else 0
        found.final_end = event.offsets_by_partition[event.partition]

    def _see(self, partition: str, found: PartitionEvidence, records: Sequence[Sequence[Any]], event: Event) -> None:
        log, places, read, writes = found.log, found.places, found.read, found.writes
        for offset, value in records:
            if log.get(offset) != value or places.get(value) != offset:
                self._place(partition, found, offset, value, f"op {event.op} of {event.process}")
            if value not in read:
                read.add(value)
                if value not in writes:
                    self._note(
                        "phantom", partition, f"op {event.op} reads {value} at {offset}, which was not sent by then"
                    )

    def _place(self, partition: str, found: PartitionEvidence, offset: int, value: str, source: str) -> None:
        there = found.log.setdefault(offset, value)
        if there != value:
            self._note("inconsistent offset", partition, f"{offset} is {there}, and {value} says {source}")
        place = found.places.setdefault(value, offset)
        if place != offset:
            self._note("duplicate", partition, f"{value} is at {place}, and at {offset} says {source}")

    def _note(self, name: str, partition: str, text: str) -> None:
        self.anomalies.append(Anomaly(name=name, partition=partition, text=text))
