# SPDX-License-Identifier: Apache-2.0
"""From which partitions of a consumer nothing comes, since when, and the last failure of each.

This module owns these times. It must not know streams, leaders or clocks.

Laws: a partition is in trouble from its start, or from the loss of its stream or route, until something comes again. Attempts
in between do not restart the time. An outage begins when the last of the partitions gets into trouble.
"""

from __future__ import annotations

from dataclasses import dataclass

from lograft.errors import LograftError
from lograft.types import TopicPartition


@dataclass(slots=True)
class Trouble:
    """One partition from which nothing comes.

    Attributes:
        since_ms: since when, in milliseconds of the engine's clock.
        error: the last failure; None before the first.
    """

    since_ms: int
    error: LograftError | None = None


class Troubles:
    """The partitions in trouble, in the order in which they got there. Only the fetch engine writes it."""

    __slots__ = ("_by_partition", "_wanted")

    def __init__(self) -> None:
        self._wanted: set[TopicPartition] = set()
        # In the order in which the partitions got into trouble.
        self._by_partition: dict[TopicPartition, Trouble] = {}

    def __len__(self) -> int:
        return len(self._by_partition)

    def begin(self, tp: TopicPartition, at_ms: int, error: LograftError | None = None) -> None:
        """Note that nothing comes from a partition, or that a further attempt has failed."""
        self._wanted.add(tp)
        trouble = self._by_partition.setdefault(tp, Trouble(at_ms))
        if error is not None:
            trouble.error = error

    def end(self, tp: TopicPartition) -> bool:
        """Note that something has come. Return False if the partition was not in trouble."""
        return self._by_partition.pop(tp, None) is not None

    def forget(self, tp: TopicPartition) -> Trouble | None:
        """Forget a partition that is no longer fetched. Return its trouble, for the case that it is fetched again at once."""
        self._wanted.discard(tp)
        return self._by_partition.pop(tp, None)

    def of(self, tp: TopicPartition) -> Trouble | None:
        """Return the trouble of a partition; None if it has none."""
        return self._by_partition.get(tp)

    def partitions(self) -> list[TopicPartition]:
        """Return the partitions in trouble, the longest trouble first."""
        return list(self._by_partition)

    @property
    def oldest_since_ms(self) -> int | None:
        """Since when the first of the partitions has been in trouble; None if none is."""
        return next((trouble.since_ms for trouble in self._by_partition.values()), None)

    @property
    def all_since_ms(self) -> int | None:
        """Since when nothing has come at all; None while something comes from a partition, or without partitions."""
        if len(self._by_partition) < len(self._wanted):
            return None
        return next((trouble.since_ms for trouble in reversed(self._by_partition.values())), None)
