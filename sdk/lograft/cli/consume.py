# SPDX-License-Identifier: Apache-2.0
"""`lograft consume`: print the records of a topic."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Final

import typer
from rich.console import Console

from lograft.admin import Admin
from lograft.cli.options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_MS,
    Bootstrap,
    ClusterId,
    Json,
    TimeoutMs,
    format_time,
    parse_time_ms,
)
from lograft.cli.output import bytes_as_json, print_json, print_note
from lograft.consumer import Consumer
from lograft.errors import UnreachableError, UsageError
from lograft.settings import UNREACHABLE_RANGE_MS
from lograft.types import ConsumerRecord, TopicPartition

POLL_MS: Final = 1_000
"""Milliseconds of one poll when the end is known."""

FOLLOW_POLL_MS: Final = 30_000
"""Milliseconds of one poll with --follow, and so between two notes that nothing can be fetched."""

POLL_RECORDS: Final = 10_000
"""Most records that are printed at a time."""


def consume(
    topic: Annotated[str, typer.Argument(help="Topic name.")],
    partition: Annotated[
        list[int] | None, typer.Option("--partition", "-p", min=0, help="May be repeated; default: all.")
    ] = None,
    from_beginning: Annotated[bool, typer.Option("--from-beginning", help="Start at the first record.")] = False,
    offset: Annotated[int | None, typer.Option("--offset", "-o", min=0, help="Start at this offset.")] = None,
    timestamp: Annotated[
        str | None,
        typer.Option("--timestamp", "-t", help="Start at this time: milliseconds since 1970 or ISO 8601."),
    ] = None,
    max_records: Annotated[int | None, typer.Option("--max", "-n", min=1, help="Stop after this many records.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for new records at the end.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print partition, offset, time and key, too.")] = False,
    rack: Annotated[
        str | None,
        typer.Option("--rack", help="Read from followers in sync in this rack rather than from leaders in others."),
    ] = None,
    null_value: Annotated[
        str, typer.Option("--null-value", help="What a null value (a tombstone) is printed as.")
    ] = "(null)",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    cluster_id: ClusterId = None,
    timeout_ms: TimeoutMs = DEFAULT_TIMEOUT_MS,
    as_json: Json = False,
) -> None:
    """Print the records of a topic, up to its present end or with --follow without end.

    Without a start option, it starts at the first record, or with --follow at the end.
    """
    if sum((from_beginning, offset is not None, timestamp is not None)) > 1:
        raise typer.BadParameter("give one of --from-beginning, --offset and --timestamp", param_hint="--offset")
    start_ms = None if timestamp is None else parse_time_ms(timestamp, "--timestamp")
    show = _show_json if as_json else partial(_show_verbose if verbose else _show_value, null_value)
    with Admin(bootstrap, cluster_id=cluster_id, request_timeout_ms=timeout_ms) as admin:
        count = admin.describe_topic(topic).partition_count
    partitions = sorted(set(partition)) if partition else list(range(count))
    tps = [TopicPartition(topic, number) for number in partitions]
    with Consumer(
        bootstrap,
        cluster_id=cluster_id,
        client_rack=rack,
        unreachable_timeout_ms=max(UNREACHABLE_RANGE_MS[0], timeout_ms),
        request_timeout_ms=timeout_ms,
    ) as consumer:
        is_tail = follow and not from_beginning and offset is None and start_ms is None
        offsets = None if offset is None else dict.fromkeys(tps, offset)
        if offset is not None:
            _check_offset(consumer, tps, offset)
        consumer.assign(tps, offsets=offsets, start="latest" if is_tail else "earliest")
        if start_ms is not None:
            for tp in tps:
                consumer.seek_to_time(tp, start_ms)
        try:
            printed = _print_records(consumer, tps, show, max_records, follow)
        except KeyboardInterrupt:
            if not follow:
                raise
            return
    if not as_json:
        Console(stderr=True, highlight=False).print(f"[dim]{printed} records[/]")


def _check_offset(consumer: Consumer, tps: Sequence[TopicPartition], offset: int) -> None:
    """Refuse an offset that a partition does not have. Reading there would jump elsewhere or wait for ever."""
    firsts, ends = consumer.beginning_offsets(tps), consumer.end_offsets(tps)
    for tp in tps:
        if not firsts[tp] <= offset <= ends[tp]:
            raise UsageError(
                f"partition {tp.partition} of {tp.topic} has no offset {offset}: its records go from {firsts[tp]} to "
                f"{ends[tp]} (exclusive); give an offset in that range, or --partition"
            )


def _print_records(
    consumer: Consumer,
    tps: Sequence[TopicPartition],
    show: Callable[[ConsumerRecord], None],
    max_records: int | None,
    follow: bool,
) -> int:
    ends = {} if follow else consumer.end_offsets(tps)
    printed = 0
    while max_records is None or printed < max_records:
        if not follow and all(consumer.position(tp) >= ends[tp] for tp in tps):
            break
        wanted = POLL_RECORDS if max_records is None else min(POLL_RECORDS, max_records - printed)
        for record in _poll(consumer, wanted, follow):
            if follow or record.offset < ends[TopicPartition(record.topic, record.partition)]:
                show(record)
                printed += 1
        sys.stdout.flush()
    return printed


def _poll(consumer: Consumer, wanted: int, follow: bool) -> list[ConsumerRecord]:
    """Poll once. With --follow, print a note and go on when brokers cannot be reached; otherwise let the error end the command."""
    try:
        return consumer.poll(wanted, timeout_ms=FOLLOW_POLL_MS if follow else POLL_MS)
    except UnreachableError as error:
        if not follow:
            raise
        print_note(error.message)
        return []


def _show_value(null_value: str, record: ConsumerRecord) -> None:
    sys.stdout.buffer.write((null_value.encode() if record.value is None else record.value) + b"\n")


def _show_verbose(null_value: str, record: ConsumerRecord) -> None:
    key = "-" if record.key is None else repr(record.key.decode(errors="backslashreplace"))
    value = null_value if record.value is None else record.value.decode(errors="backslashreplace")
    place = f"{record.partition}:{record.offset}"
    sys.stdout.write(f"{place}\t{format_time(record.timestamp_ms)}\t{key}\t{value}\n")


def _show_json(record: ConsumerRecord) -> None:
    print_json(
        {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp_ms": record.timestamp_ms,
            **bytes_as_json("key", record.key),
            **bytes_as_json("value", record.value),
            "headers": [{"name": name, **bytes_as_json("value", data)} for name, data in record.headers],
        }
    )
