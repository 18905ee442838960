# SPDX-License-Identifier: Apache-2.0
"""Which partitions of a consumer give nothing, since when, and what the last failure was.

Owns the times. Must not know streams, leaders or clocks.

Laws: a partition is in trouble from its start, or from the loss of what it was read through, until something comes again; tries
in between do not begin the time anew. Nothing at all comes since the last of the partitions fell into trouble.
"""

from __future__ import annotations

from dataclasses import dataclass

from lograft.errors import LograftError
from lograft.types import TopicPartition


@dataclass(slots=True)
class Trouble:
    """One partition that gives nothing.

    Attributes:
        since_ms: since when, in milliseconds of the engine's clock.
        error: the last failure; None: none yet.
    """

    since_ms: int
    error: LograftError | None = None


class Troubles:
    """See the module docstring. Written by the fetch engine alone."""

    __slots__ = ("_by_partition", "_wanted")

    def __init__(self) -> None:
        self._wanted: set[TopicPartition] = set()
        # In the order in which they fell into trouble.
        self._by_partition: dict[TopicPartition, Trouble] = {}

    def __len__(self) -> int:
        return len(self._by_partition)

    def begin(self, tp: TopicPartition, at_ms: int, error: LograftError | None = None) -> None:
        """A partition gives nothing (any more), or a further try for it has failed."""
        self._wanted.add(tp)
        trouble = self._by_partition.setdefault(tp, Trouble(at_ms))
        if error is not None:
            trouble.error = error

    def end(self, tp: TopicPartition) -> bool:
        """Something has come; False: it was not in trouble."""
        return self._by_partition.pop(tp, None) is not None

    def forget(self, tp: TopicPartition) -> Trouble | None:
        """A partition is fetched no more; returns its trouble, for one that is fetched again at once."""
        self._wanted.discard(tp)
        return self._by_partition.pop(tp, None)

    def of(self, tp: TopicPartition) -> Trouble | None:
        """The trouble of a partition; None: it has none."""
        return self._by_partition.get(tp)

    def partitions(self) -> list[TopicPartition]:
        """Partitions in trouble, the longest first."""
        return list(self._by_partition)

    @property
    def oldest_since_ms(self) -> int | None:
        """Since when the first of them is in trouble; None: none is."""
        return next((trouble.since_ms for trouble in self._by_partition.values()), None)

    @property
    def all_since_ms(self) -> int | None:
        """Since when nothing comes at all; None: some partition gives something, or there is none."""
        if len(self._by_partition) < len(self._wanted):
            return None
        return next((trouble.since_ms for trouble in reversed(self._by_partition.values())), None)
