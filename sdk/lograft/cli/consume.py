# SPDX-License-Identifier: Apache-2.0
"""`lograft consume`: print the records of a topic."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

import typer

from lograft.admin import Admin
from lograft.cli.completion import complete_group, complete_topic
from lograft.cli.formats import JSON, Writer, record_writer
from lograft.cli.options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_MS,
    Bootstrap,
    ClusterId,
    Json,
    TimeoutMs,
    parse_time_ms,
)
from lograft.cli.output import DIM, counted, print_note, styled
from lograft.cli.progress import Meter
from lograft.consumer import Consumer
from lograft.errors import IsolationTimeoutError, UnreachableError, UsageError
from lograft.settings import CONSUMER_DEFAULTS, ISOLATION_TIMEOUT_RANGE_MS, UNREACHABLE_RANGE_MS
from lograft.types import ConsumerRecord, TopicPartition

POLL_MS: Final = 1_000
"""Milliseconds of one poll when the end is known."""

FOLLOW_POLL_MS: Final = 30_000
"""Milliseconds of one poll with --follow, and so between two notes that nothing can be fetched."""

POLL_RECORDS: Final = 10_000
"""Most records that are printed at a time."""

NO_PARTITION_NOTE_S: Final = 10.0
"""Seconds without a partition of the group after which a note says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Range:
    """Which records are wanted, by the options.

    Attributes:
        from_beginning: begin at the first record.
        offset: begin at this offset.
        tail: begin so many offsets before the end of each partition.
        since_ms: begin at the first record with this timestamp or a later one, in milliseconds since 1970-01-01 UTC.
        until_ms: end before the first record with this timestamp or a later one.
        max_records: end after so many records.
        follow: wait for new records.
    """

    from_beginning: bool
    offset: int | None
    tail: int | None
    since_ms: int | None
    until_ms: int | None
    max_records: int | None
    follow: bool

    @property
    def has_start(self) -> bool:
        """True if an option says where to begin."""
        return self.from_beginning or self.offset is not None or self.tail is not None or self.since_ms is not None

    def check(self, group: str | None, partitions: Sequence[int]) -> None:
        """Refuse options that contradict each other.

        Raises:
            typer.BadParameter: they do.
        """
        starts = (self.from_beginning, self.offset is not None, self.tail is not None, self.since_ms is not None)
        if sum(starts) > 1:
            raise typer.BadParameter(
                "give one of --from-beginning, --offset, --tail and --since", param_hint="--offset"
            )
        if self.until_ms is not None and self.follow:
            raise typer.BadParameter("has an end; --follow has none", param_hint="--until")
        if group is not None and (any(starts[1:]) or self.until_ms is not None or partitions):
            raise typer.BadParameter(
                "the group says which partitions are read, and from where: without --partition, --offset, --tail, "
                "--since and --until",
                param_hint="--group",
            )


def consume(
    topic: Annotated[str, typer.Argument(help="Topic name.", autocompletion=complete_topic)],
    partition: Annotated[
        list[int] | None, typer.Option("--partition", "-p", min=0, help="May be repeated; default: all.")
    ] = None,
    from_beginning: Annotated[bool, typer.Option("--from-beginning", help="Start at the first record.")] = False,
    offset: Annotated[int | None, typer.Option("--offset", "-o", min=0, help="Start at this offset.")] = None,
    tail: Annotated[
        int | None, typer.Option("--tail", min=0, help="Start so many offsets before the end of each partition.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            "--timestamp",
            "-t",
            help="Start at the first record of this time or later: milliseconds since 1970, ISO 8601, or 15m, 2h, 7d ago.",
        ),
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", help="End before the first record of this time or later, given as --since.")
    ] = None,
    max_records: Annotated[int | None, typer.Option("--max", "-n", min=1, help="Stop after this many records.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-F", help="Wait for new records at the end.")] = False,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            "-g",
            help="Read as a member of this group, from its committed offsets, and commit what was printed.",
            autocompletion=complete_group,
        ),
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(
            "--format",
            "-f",
            help=r"Print each record so: %t topic, %p partition, %o offset, %T timestamp in ms, %D as ISO 8601, %k key, "
            r"%K its length, %s value, %S its length, %h headers, %% a percent sign; \n, \t, \xNN. Or: json.",
        ),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print partition, offset, time and key, too.")] = False,
    rack: Annotated[
        str | None,
        typer.Option("--rack", help="Read from followers in sync in this rack rather than from leaders in others."),
    ] = None,
    isolation: Annotated[
        str,
        typer.Option(
            "--isolation",
            help='"committed", or "committed-together": records of an ingest or transaction only when all its partitions have them.',
        ),
    ] = CONSUMER_DEFAULTS.isolation,
    null_value: Annotated[
        str, typer.Option("--null-value", help="What a null value (a tombstone) is printed as, and with %k a null key.")
    ] = "(null)",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    cluster_id: ClusterId = None,
    timeout_ms: TimeoutMs = DEFAULT_TIMEOUT_MS,
    as_json: Json = False,
) -> None:
    """Print the records of a topic, up to its present end or with --follow without end.

    Without a start option, it starts at the first record, or with --follow at the end. With --group it goes on where the group
    is, and starts at the first record if the group has no offset.
    """
    wanted = _Range(
        from_beginning=from_beginning,
        offset=offset,
        tail=tail,
        since_ms=None if since is None else parse_time_ms(since, "--since"),
        until_ms=None if until is None else parse_time_ms(until, "--until"),
        max_records=max_records,
        follow=follow,
    )
    wanted.check(group, partition or ())
    is_json = as_json or text == JSON
    write = record_writer(text, null_value, is_json=is_json, verbose=verbose)
    with Admin(bootstrap, cluster_id=cluster_id, request_timeout_ms=timeout_ms) as admin:
        count = admin.describe_topic(topic).partition_count
    partitions = sorted(set(partition)) if partition else list(range(count))
    tps = [TopicPartition(topic, number) for number in partitions]
    with Consumer(
        bootstrap,
        cluster_id=cluster_id,
        group=group,
        client_rack=rack,
        unreachable_timeout_ms=max(UNREACHABLE_RANGE_MS[0], timeout_ms),
        isolation=isolation,
        isolation_timeout_ms=max(ISOLATION_TIMEOUT_RANGE_MS[0], timeout_ms),
        request_timeout_ms=timeout_ms,
    ) as consumer:
        try:
            if group is None:
                printed = _print_partitions(consumer, tps, wanted, write)
            else:
                printed = _print_group(consumer, topic, wanted, write)
        except KeyboardInterrupt:
            if not follow:
                raise
            return
    if not is_json:
        print(styled(counted(printed, "record"), DIM, sys.stderr), file=sys.stderr)


def _print_partitions(consumer: Consumer, tps: Sequence[TopicPartition], wanted: _Range, write: Writer) -> int:
    """Print the records of fixed partitions, and return their number."""
    is_at_end = wanted.follow and not wanted.has_start
    if wanted.offset is not None:
        _check_offset(consumer, tps, wanted.offset)
        offsets = dict.fromkeys(tps, wanted.offset)
    elif wanted.tail is not None:
        offsets = _tail(consumer, tps, wanted.tail)
    else:
        offsets = None
    consumer.assign(tps, offsets=offsets, start="latest" if is_at_end else "earliest")
    if wanted.since_ms is not None:
        consumer.seek_to_time(dict.fromkeys(tps, wanted.since_ms))
    ends = None if wanted.follow else _ends(consumer, tps, wanted.until_ms)

    def is_over() -> bool:
        return ends is not None and all(consumer.position(tp) >= ends[tp] for tp in tps)

    total = None if ends is None else sum(max(0, ends[tp] - consumer.position(tp)) for tp in tps)
    return _print_until(consumer, wanted, write, is_over, ends, total)


def _print_group(consumer: Consumer, topic: str, wanted: _Range, write: Writer) -> int:
    """Print what the group gives, and return the number of records."""
    consumer.subscribe([topic])
    started_s = time.monotonic()
    is_told = False

    def is_over() -> bool:
        nonlocal is_told
        has_any = bool(consumer.assignment)
        if not has_any and not is_told and time.monotonic() - started_s > NO_PARTITION_NOTE_S:
            is_told = True
            print_note("the group gives this consumer no partition: its other members have them all")
        return not wanted.follow and has_any and consumer.is_caught_up

    return _print_until(consumer, wanted, write, is_over, None, wanted.max_records)


def _print_until(
    consumer: Consumer,
    wanted: _Range,
    write: Writer,
    is_over: Callable[[], bool],
    ends: Mapping[TopicPartition, int] | None,
    total: int | None,
) -> int:
    limit = wanted.max_records
    out = sys.stdout.buffer
    if total is not None and limit is not None:
        total = min(total, limit)
    # On a terminal the records themselves show how it goes.
    with Meter("consume", total, is_shown=not sys.stdout.isatty()) as meter:
        while (limit is None or meter.records < limit) and not is_over():
            most = POLL_RECORDS if limit is None else min(POLL_RECORDS, limit - meter.records)
            size_bytes = count = 0
            for record in _poll(consumer, most, wanted.follow):
                if ends is None or record.offset < ends[TopicPartition(record.topic, record.partition)]:
                    line = write(record)
                    out.write(line)
                    size_bytes += len(line)
                    count += 1
            out.flush()
            meter.add(count, size_bytes)
    return meter.records


def _ends(consumer: Consumer, tps: Sequence[TopicPartition], until_ms: int | None) -> dict[TopicPartition, int]:
    """Return where to stop in each partition, exclusive."""
    ends = consumer.end_offsets(tps)
    if until_ms is not None:
        for tp, offset in consumer.offsets_for_times(dict.fromkeys(tps, until_ms)).items():
            if offset is not None:
                ends[tp] = min(ends[tp], offset)
    return ends


def _tail(consumer: Consumer, tps: Sequence[TopicPartition], count: int) -> dict[TopicPartition, int]:
    firsts, ends = consumer.beginning_offsets(tps), consumer.end_offsets(tps)
    return {tp: max(firsts[tp], ends[tp] - count) for tp in tps}


def _check_offset(consumer: Consumer, tps: Sequence[TopicPartition], offset: int) -> None:
    """Refuse an offset that a partition does not have. Reading there would jump elsewhere or wait for ever."""
    firsts, ends = consumer.beginning_offsets(tps), consumer.end_offsets(tps)
    for tp in tps:
        if not firsts[tp] <= offset <= ends[tp]:
            raise UsageError(
                f"partition {tp.partition} of {tp.topic} has no offset {offset}: its records go from {firsts[tp]} to "
                f"{ends[tp]} (exclusive); give an offset in that range, or --partition"
            )


def _poll(consumer: Consumer, wanted: int, follow: bool) -> list[ConsumerRecord]:
    """Poll once. With --follow, print a note and go on when brokers or parts of decisions are missing; otherwise raise the error."""
    try:
        return consumer.poll(wanted, timeout_ms=FOLLOW_POLL_MS if follow else POLL_MS)
    except (UnreachableError, IsolationTimeoutError) as error:
        if not follow:
            raise
        print_note(error.message)
        return []
