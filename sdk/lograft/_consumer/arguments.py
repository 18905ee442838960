# SPDX-License-Identifier: Apache-2.0
"""Checks the arguments of `assign`, `seek`, `subscribe` and the lookups of offsets. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from lograft.errors import UsageError
from lograft.types import OffsetAndMetadata, Position, RebalanceListener, TopicPartition

MAX_METADATA_BYTES = 4_096
"""Bytes of UTF-8 of the longest metadata of an offset."""


def check_offset(offset: object, what: str) -> None:
    """Check an offset that the caller gave.

    Raises:
        UsageError: it is not a whole number of at least 0.
    """
    if isinstance(offset, bool) or not isinstance(offset, int) or offset < 0:
        raise UsageError(f"{what} is a whole number from 0, not {offset!r}")


def check_partitions(tps: Iterable[object]) -> list[TopicPartition]:
    """Return the caller's partitions as a list without duplicates.

    Raises:
        UsageError: an element is not a (topic, partition) pair.
    """
    checked: dict[TopicPartition, None] = {}
    for tp in tps:
        fields = cast("tuple[object, ...]", tp) if isinstance(tp, tuple) else ()
        if len(fields) != 2:
            raise UsageError(f"a partition is a TopicPartition, not {tp!r}")
        topic, partition = fields
        if not isinstance(topic, str) or type(partition) is not int or partition < 0:
            raise UsageError(f"a partition is a topic name and a number from 0, not {tp!r}")
        checked[TopicPartition(topic, partition)] = None
    return list(checked)


def check_commit(given: Mapping[TopicPartition, int | OffsetAndMetadata]) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the offsets that the caller wants to commit.

    Raises:
        UsageError: a partition, an offset or a metadata text is not valid.
    """
    check_partitions(given)
    found: dict[TopicPartition, OffsetAndMetadata] = {}
    for tp, value in given.items():
        offset = value if isinstance(value, OffsetAndMetadata) else OffsetAndMetadata(value)
        check_offset(offset.offset, f"the offset of {TopicPartition(*tp)}")
        if len(offset.metadata.encode()) > MAX_METADATA_BYTES:
            raise UsageError(f"the metadata of {TopicPartition(*tp)} is longer than {MAX_METADATA_BYTES} bytes")
        found[TopicPartition(*tp)] = offset
    return found


def one_or_many(
    tps: TopicPartition | Mapping[TopicPartition, int], value: int | None, what: str
) -> dict[TopicPartition, int]:
    """Return {partition: value} for one partition with a value, or for a mapping.

    Raises:
        UsageError: a partition comes without a value, or a mapping with one.
    """
    if isinstance(tps, Mapping):
        if value is not None:
            raise UsageError(f"give either one partition and its {what}, or a mapping of partitions to them")
        check_partitions(tps)
        return {TopicPartition(*tp): each for tp, each in tps.items()}
    if value is None:
        raise UsageError(f"give the {what} for {tps!r}")
    (tp,) = check_partitions([tps])
    return {tp: value}


def check_topics(topics: object) -> tuple[str, ...]:
    """Return the names of topics to subscribe to, sorted.

    Raises:
        UsageError: it is no collection of names.
    """
    if isinstance(topics, str):
        return (topics,)
    if not isinstance(topics, Iterable):
        raise UsageError(f"topics are names, not {topics!r}")
    names = list(cast("Iterable[object]", topics))
    if not all(isinstance(name, str) and name for name in names):
        raise UsageError(f"topics are names, not {names!r}")
    return tuple(sorted({cast("str", name) for name in names}))


def parse_start(start: str) -> Position:
    """Return the position for "earliest" or "latest".

    Raises:
        UsageError: `start` has another value.
    """
    try:
        return Position(start)
    except ValueError:
        raise UsageError(f'start is "earliest" or "latest", not {start!r}') from None


def make_listener(
    listener: RebalanceListener | None,
    on_assigned: Callable[[Sequence[TopicPartition]], Any] | None,
    on_revoked: Callable[[Sequence[TopicPartition]], Any] | None,
    on_lost: Callable[[Sequence[TopicPartition]], Any] | None,
) -> RebalanceListener | None:
    """Return the listener, or one of single functions.

    Raises:
        UsageError: both are given, or the listener is of another type.
    """
    functions = {"on_assigned": on_assigned, "on_revoked": on_revoked, "on_lost": on_lost}
    given = {name: function for name, function in functions.items() if function is not None}
    if listener is not None and given:
        raise UsageError("give either a listener or functions")
    if listener is not None:
        missing = [name for name in functions if not callable(getattr(listener, name, None))]
        if missing:
            raise UsageError(f"a listener is a RebalanceListener; {listener!r} has no {missing[0]}")
        return listener
    if not given:
        return None
    made = RebalanceListener()
    for name, function in given.items():
        setattr(made, name, function)
    return made
