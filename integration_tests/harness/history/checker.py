# SPDX-License-Identifier: Apache-2.0
"""The judge of histories: finds anomalies, which no history of Lograft may show. Near-linear in the number of events.

Owns the definitions of the anomalies. docs/workload.md has them as a table; most come from Jepsen's workload for Kafka. An unknown
outcome stays unknown: the value may be there or not, but at most once. Does not know files or clusters.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate

from integration_tests.harness.history.events import Event, Type
from integration_tests.harness.history.evidence import Anomaly, Evidence, PartitionEvidence, Write

STALE_END_S_MAX = 6.0
"""Seconds for which an isolated leader may still report an old end. Linearizable reads of ends are not promised."""
EXIT_STATUS = {"PASSED": 0, "FAILED": 1, "UNDETERMINED": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of the check.

    Attributes:
        anomalies: all anomalies.
        unread: partitions without a final read. What they lost is not known.
        late_unknown_count: values with an unknown outcome behind later values of their producer. They are allowed but notable.
        counts: operations by kind and type.
        value_counts: values sent, by outcome, and how many of the unknown ones are in the log.
    """

    anomalies: list[Anomaly]
    unread: list[str]
    late_unknown_count: int
    counts: Counter[str]
    value_counts: Counter[str]

    @property
    def name(self) -> str:
        """PASSED, FAILED or UNDETERMINED."""
        if self.anomalies:
            return "FAILED"
        return "UNDETERMINED" if self.unread or not self.value_counts["acknowledged"] else "PASSED"

    def lines(self, *, anomalies_max: int = 20) -> list[str]:
        """Return a summary for people."""
        kinds = Counter(anomaly.name for anomaly in self.anomalies)
        values = ", ".join(f"{count} {what}" for what, count in sorted(self.value_counts.items()))
        operations = ", ".join(f"{count} {what}" for what, count in sorted(self.counts.items()))
        found = [f"operations: {operations}", f"values: {values}"]
        if self.late_unknown_count:
            found.append(f"{self.late_unknown_count} values with an unknown outcome came late")
        found += [f"no final read of {', '.join(self.unread[:10])}"] if self.unread else []
        found += [f"{name}: {count}" for name, count in sorted(kinds.items())]
        found += [f"ANOMALY {anomaly}" for anomaly in self.anomalies[:anomalies_max]]
        return [*found, self.name]


def check(events: Iterable[Event], *, stale_end_s_max: float = STALE_END_S_MAX) -> Verdict:
    """Judge a history.

    Args:
        events: the events in the order in which they happened.
        stale_end_s_max: maximum seconds by which an answer about a partition's end may be behind the acknowledgements.
    """
    evidence = Evidence(events)
    anomalies = evidence.anomalies
    unread: list[str] = []
    late = 0
    values: Counter[str] = Counter()
    for partition, found in sorted(evidence.partitions.items()):
        if found.final is None:
            unread.append(partition)
        for rule in (losses, aborted_reads, holes, skips):
            anomalies += rule(partition, found)
        anomalies += stale_ends(partition, found, int(stale_end_s_max * 1e9))
        reordered, late_here = orders(partition, found)
        anomalies += reordered
        late += late_here
        values += count_values(found)
    return Verdict(
        anomalies=anomalies,
        unread=unread,
        late_unknown_count=late,
        counts=evidence.counts,
        value_counts=values,
    )


def losses(partition: str, found: PartitionEvidence) -> Iterator[Anomaly]:
    """Find values that were acknowledged or read and are missing.

    With a final read, these are the values that it lacks. Without one, they are values that no reader got although one read further.
    """
    final = found.final
    end = found.final_end
    if final is None:
        end = 1 + max((found.places[value] for value in found.read), default=-1)
    there = found.read if final is None else final
    for value, write in found.writes.items():
        if write.type is not Type.OK or value in there:
            continue
        assert write.offset is not None, "what is acknowledged has an offset"
        text = f"{value} of op {write.op} was acknowledged at {write.offset}"
        if write.offset < end:
            yield Anomaly(name="lost write", partition=partition, text=f"{text}, and is not there")
        elif final is not None:
            yield Anomaly(name="unseen", partition=partition, text=f"{text}, and the log ends at {end}")
    if final is None:
        return
    for value in sorted(found.read - final.keys()):
        text = f"{value} was read at {found.places[value]}, and is not there at the end"
        yield Anomaly(name="vanished", partition=partition, text=text)


def aborted_reads(partition: str, found: PartitionEvidence) -> Iterator[Anomaly]:
    """Find values that were read although their sends definitely failed."""
    for value, write in found.writes.items():
        if write.type is Type.FAIL and value in found.read:
            text = f"{value} of op {write.op} failed, and is at {found.places[value]}"
            yield Anomaly(name="aborted read", partition=partition, text=text)


def holes(partition: str, found: PartitionEvidence) -> Iterator[Anomaly]:
    """Find offsets without a record in the final read. Without transactions there must be none."""
    if found.final is None:
        return
    expected = found.final_start
    for offset in (*sorted(found.final.values()), found.final_end):
        if offset > expected:
            yield Anomaly(name="hole", partition=partition, text=f"no records from {expected} to {offset - 1}")
        expected = offset + 1


def skips(partition: str, found: PartitionEvidence) -> Iterator[Anomaly]:
    """Find places where a consumer skipped offsets that hold a record."""
    offsets = sorted(found.log) if found.steps else []
    for step in found.steps:
        number = bisect_right(offsets, step.after)
        if offsets[number] < step.offset:
            text = (
                f"op {step.op} of {step.process} reads {step.offset} after {step.after}, {offsets[number]} is between"
            )
            yield Anomaly(name=step.name, partition=partition, text=text)


def orders(partition: str, found: PartitionEvidence) -> tuple[list[Anomaly], int]:
    """Find acknowledged values of a producer that are in another order than it sent them.

    Returns:
        The anomalies, and the number of values with an unknown outcome behind later values of their producer.
    """
    anomalies: list[Anomaly] = []
    late = 0
    by_process: dict[str, list[tuple[str, Write]]] = {}
    for value, write in found.writes.items():
        if value in found.places:
            by_process.setdefault(write.process, []).append((value, write))
    for process, writes in by_process.items():
        last, last_value = -1, ""
        for value, write in writes:
            if write.type is not Type.OK:
                continue
            offset = found.places[value]
            if offset <= last:
                text = f"{process} sent {value} after {last_value}, they are at {offset} and {last}"
                anomalies.append(Anomaly(name="nonmonotonic send", partition=partition, text=text))
            last, last_value = max(last, offset), value
        lowest_after = sys.maxsize
        for value, write in reversed(writes):
            offset = found.places[value]
            late += write.is_unknown and offset > lowest_after
            lowest_after = min(lowest_after, offset)
    return anomalies, late


def stale_ends(partition: str, found: PartitionEvidence, stale_ns_max: int) -> Iterator[Anomaly]:
    """Find answers about a partition's end that lack values acknowledged long enough before the question."""
    times = [time_ns for time_ns, _ in found.acknowledged]
    ends = list(accumulate((offset + 1 for _, offset in found.acknowledged), max))
    for answer in found.ends:
        number = bisect_left(times, answer.invoked_ns - stale_ns_max)
        if number and ends[number - 1] > answer.end_offset:
            text = f"op {answer.op} of {answer.process} was told {answer.end_offset}, long after {ends[number - 1]}"
            yield Anomaly(name="stale end", partition=partition, text=text)


def count_values(found: PartitionEvidence) -> Counter[str]:
    """Count values by outcome."""
    names = {Type.OK: "acknowledged", Type.FAIL: "failed", Type.INFO: "unknown", Type.INVOKE: "unknown"}
    counts = Counter(names[write.type] for write in found.writes.values())
    unknown = (value for value, write in found.writes.items() if write.is_unknown)
    counts["unknown and there"] = sum(value in found.read for value in unknown)
    return +counts
