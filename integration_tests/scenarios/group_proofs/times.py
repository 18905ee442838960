# SPDX-License-Identifier: Apache-2.0
"""How long rebalances take, and how long partitions that keep their owner pause in them, from the merged journals.

Owns what counts as a rebalance and as a pause. docs/testing.md has both as a table. Does not know files or processes.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from dataclasses import dataclass, field

from integration_tests.scenarios.group_proofs.journal import Entry, Kind

QUIET_NS = 1_000_000_000
"""Nanoseconds without a change of ownership after which a rebalance is over."""
LATEST_NS = 120_000_000_000
"""Nanoseconds within which a record that pauses a partition in a rebalance must have been acknowledged before it."""

_CHANGES = frozenset({Kind.SUBSCRIBING, Kind.ASSIGNED, Kind.REVOKED, Kind.LOST})


@dataclass(slots=True)
class Rebalance:
    """A span of changes of ownership. `touched` are the partitions that get or lose an owner in it."""

    began_ns: int
    ended_ns: int
    touched: set[int] = field(default_factory=set[int])


@dataclass(slots=True)
class Join:
    """A member that joins, until it has its share."""

    member: str
    began_ns: int
    share: int


@dataclass(slots=True)
class _Records:
    """Acknowledgements and first deliveries of one partition, by offset."""

    acked_ns: array[int] = field(default_factory=lambda: array("q"))
    delivered_ns: array[int] = field(default_factory=lambda: array("q"))


class GroupTimes:
    """Takes entries in the order of their times.

    Args:
        partition_count: number of partitions.

    Attributes:
        joins_s: seconds of rebalances after joins, outside the spans in which brokers are hurt.
        first_s: seconds from each `subscribe()` to the first partition.
        failovers_s: seconds from the kill of the coordinator to the first commit that was sent later and acknowledged.
    """

    def __init__(self, partition_count: int) -> None:
        self.joins_s: list[float] = []
        self.first_s: list[float] = []
        self.failovers_s: list[float] = []
        self._count = partition_count
        self._records = [_Records() for _ in range(partition_count)]
        self._holders: list[str | None] = [None] * partition_count
        self._holder_history: list[list[tuple[int, str | None]]] = [[] for _ in range(partition_count)]
        self._members: set[str] = set()
        self._join: Join | None = None
        self._first: dict[str, int] = {}
        self._rebalances: list[Rebalance] = []
        self._hurt: list[tuple[int, int]] = []
        self._hurt_since_ns: int | None = None
        self._disturbed: list[tuple[int, int]] = []
        # Members that are stopped or busy: spans by member.
        self._away: dict[str, list[tuple[int, int]]] = {}
        self._killed_ns: int | None = None
        self._sent: dict[str, int] = {}
        self._is_ready = False

    def take(self, entry: Entry) -> None:
        """Take the next entry."""
        kind = entry.kind
        if kind is Kind.ACKED:
            self._records[entry.fields["partition"]].acked_ns.extend([entry.time_ns] * entry.fields["count"])
        elif kind is Kind.POLLED:
            self._polled(entry)
        elif kind in _CHANGES:
            self._change(entry)
        elif kind in (Kind.KILLED, Kind.LEAVING):
            self._gone(entry)
        elif kind is Kind.READY:
            self._is_ready, self._join = True, None
        elif kind is Kind.BROKER_HURT:
            self._hurt_since_ns = self._killed_ns = entry.time_ns
            self._join = None
        elif kind is Kind.BROKER_WELL and self._hurt_since_ns is not None:
            self._hurt.append((self._hurt_since_ns, entry.time_ns))
            self._hurt_since_ns = None
        elif kind is Kind.STANDSTILL:
            self._disturbed.append((entry.fields["began_ns"], entry.time_ns))
            self._join = None
        elif kind is Kind.STOPPED:
            self._away.setdefault(entry.fields["target"], []).append((entry.time_ns, 1 << 62))
        elif kind is Kind.CONTINUED:
            spans = self._away[entry.fields["target"]]
            spans[-1] = (spans[-1][0], entry.time_ns + QUIET_NS)
        elif kind is Kind.BUSY:
            end_ns = entry.time_ns + entry.fields["busy_ms"] * 1_000_000 + QUIET_NS
            self._away.setdefault(entry.writer, []).append((entry.time_ns, end_ns))
        elif kind is Kind.COMMITTING:
            self._sent[entry.writer] = entry.time_ns
        elif kind is Kind.COMMITTED:
            self._committed(entry)

    # -- pauses

    def pauses_s(self) -> list[float]:
        """Return the pause of each partition that keeps its owner, in each rebalance that counts, in seconds."""
        return [pause for each in self._judged() for pause in self._pauses(each.began_ns, each.ended_ns, each.touched)]

    def calm_s(self) -> list[float]:
        """Return the same of equally long spans before these rebalances, in which nothing changes."""
        found: list[float] = []
        spans = [(each.began_ns, each.ended_ns) for each in self._rebalances]
        for each in self._judged():
            end_ns = each.began_ns - QUIET_NS // 10
            began_ns = end_ns - (each.ended_ns - each.began_ns)
            if not _touches(spans, began_ns, end_ns) and not _touches(self._hurt, began_ns, end_ns):
                found += self._pauses(began_ns, end_ns, set())
        return found

    def longest_pauses(self, count: int) -> list[tuple[float, float, int]]:
        """Return the longest pauses: seconds, seconds from the first entry to the rebalance, partition."""
        first_ns = self._rebalances[0].began_ns if self._rebalances else 0
        found: list[tuple[float, float, int]] = []
        for each in self._judged():
            for number in range(self._count):
                pauses = self._pauses(each.began_ns, each.ended_ns, each.touched, only=number)
                found += [(pause, (each.began_ns - first_ns) / 1e9, number) for pause in pauses]
        return sorted(found, reverse=True)[:count]

    @property
    def rebalances(self) -> int:
        """Number of rebalances that count."""
        return len(self._judged())

    def latencies_s(self) -> list[float]:
        """Return the time from acknowledgement to delivery of every record, in seconds."""
        return [
            max(0, delivered - acked) / 1e9
            for each in self._records
            for acked, delivered in zip(each.acked_ns, each.delivered_ns, strict=False)
        ]

    def _judged(self) -> list[Rebalance]:
        hurt = [*self._hurt, *([(self._hurt_since_ns, 1 << 62)] if self._hurt_since_ns is not None else [])]
        return [
            each
            for each in self._rebalances
            if not _touches(hurt, each.began_ns, each.ended_ns)
            and not _touches(self._disturbed, each.began_ns, each.ended_ns)
        ]

    def _pauses(self, began_ns: int, ended_ns: int, touched: set[int], *, only: int | None = None) -> list[float]:
        found: list[float] = []
        for number in range(self._count) if only is None else (only,):
            holder = self._holder_at(number, began_ns)
            if number in touched or holder is None or _touches(self._away.get(holder, []), began_ns, ended_ns):
                continue
            records = self._records[number]
            first = bisect_left(records.acked_ns, began_ns - LATEST_NS)
            last = bisect_left(records.acked_ns, ended_ns)
            longest_ns: int | None = None
            for offset in range(first, min(last, len(records.delivered_ns))):
                if records.delivered_ns[offset] >= began_ns:
                    longest_ns = max(longest_ns or 0, records.delivered_ns[offset] - records.acked_ns[offset])
            if longest_ns is not None:
                found.append(longest_ns / 1e9)
        return found

    def _holder_at(self, number: int, time_ns: int) -> str | None:
        holder: str | None = None
        for changed_ns, name in self._holder_history[number]:
            if changed_ns > time_ns:
                break
            holder = name
        return holder

    def _polled(self, entry: Entry) -> None:
        for number, (_, last) in entry.by_partition("records").items():
            delivered_ns = self._records[number].delivered_ns
            # Only first deliveries count.
            new = last + 1 - len(delivered_ns)
            if new > 0:
                delivered_ns.extend([entry.time_ns] * new)

    # -- changes

    def _change(self, entry: Entry) -> None:
        kind, name = entry.kind, entry.writer
        touched: set[int] = set()
        if kind is Kind.SUBSCRIBING:
            self._members.add(name)
            self._first[name] = entry.time_ns
            self._join = None
            if self._is_ready and self._hurt_since_ns is None and entry.fields["instance"] is None:
                self._join = Join(name, entry.time_ns, self._count // len(self._members))
        elif kind is Kind.ASSIGNED:
            touched = set(entry.by_partition("starts"))
            self._hold(touched, name, entry.time_ns)
            since_ns = self._first.pop(name, None)
            if since_ns is not None and touched and self._is_ready and self._hurt_since_ns is None:
                self.first_s.append((entry.time_ns - since_ns) / 1e9)
        else:
            touched = {each for each in entry.fields["partitions"] if self._holders[each] == name}
            self._hold(touched, None, entry.time_ns)
        self._extend(entry.time_ns, touched)
        join = self._join
        if (
            join is not None
            and None not in self._holders
            and sum(holder == join.member for holder in self._holders) >= join.share
        ):
            self.joins_s.append((entry.time_ns - join.began_ns) / 1e9)
            self._join = None

    def _gone(self, entry: Entry) -> None:
        name = entry.fields["target"]
        self._members.discard(name)
        self._join = None
        if entry.kind is Kind.KILLED:
            touched = {number for number, holder in enumerate(self._holders) if holder == name}
            self._hold(touched, None, entry.time_ns)

    def _hold(self, numbers: set[int], name: str | None, time_ns: int) -> None:
        for number in sorted(numbers):
            self._holders[number] = name
            self._holder_history[number].append((time_ns, name))

    def _extend(self, time_ns: int, touched: set[int]) -> None:
        if not self._is_ready:
            return
        last = self._rebalances[-1] if self._rebalances else None
        if last is None or time_ns - last.ended_ns > QUIET_NS:
            last = Rebalance(time_ns, time_ns)
            self._rebalances.append(last)
        last.ended_ns = time_ns
        last.touched |= touched

    def _committed(self, entry: Entry) -> None:
        sent_ns = self._sent.get(entry.writer, 0)
        if self._killed_ns is not None and sent_ns > self._killed_ns:
            self.failovers_s.append((entry.time_ns - self._killed_ns) / 1e9)
            self._killed_ns = None


def _touches(spans: list[tuple[int, int]], began_ns: int, ended_ns: int) -> bool:
    return any(one_ns < ended_ns and other_ns > began_ns for one_ns, other_ns in spans)
