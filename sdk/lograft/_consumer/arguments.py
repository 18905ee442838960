# SPDX-License-Identifier: Apache-2.0
"""Checks the arguments of `assign`, `seek` and the lookups of offsets. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from lograft.errors import UsageError
from lograft.types import Position, TopicPartition


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


def parse_start(start: str) -> Position:
    """Return the position for "earliest" or "latest".

    Raises:
        UsageError: `start` has another value.
    """
    try:
        return Position(start)
    except ValueError:
        raise UsageError(f'start is "earliest" or "latest", not {start!r}') from None
