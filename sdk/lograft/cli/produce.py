# SPDX-License-Identifier: Apache-2.0
"""`lograft produce`: send a value, the lines of a file, or the lines of standard input."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, BinaryIO, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from lograft.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, ClusterId, Json, parse_pairs, parse_time_ms, unescape
from lograft.cli.output import print_error, print_json
from lograft.errors import DeliveryError, UsageError
from lograft.producer import Producer
from lograft.settings import PRODUCER_DEFAULTS
from lograft.types import BatchReceipt


class OnError(StrEnum):
    """What the command does at a line that it cannot send."""

    STOP = "stop"
    CONTINUE = "continue"


PROGRESS_STEP_BYTES: Final = 1 << 20
"""Bytes between two updates of the progress bar."""


def produce(
    topic: Annotated[str, typer.Argument(help="Topic name.")],
    value: Annotated[str | None, typer.Option("--value", "-v", help="Send this one value.")] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="Key of every record.")] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help='Send each line of a file; "-" is standard input.')
    ] = None,
    key_separator: Annotated[
        str | None,
        typer.Option("--key-separator", help=r"Text that ends the key in each line, such as ':' or '\t' (a tab)."),
    ] = None,
    allow_missing_key: Annotated[
        bool, typer.Option("--allow-missing-key", help="A line without the separator is a value without a key.")
    ] = False,
    null_value: Annotated[
        str | None, typer.Option("--null-value", help="A value that is this text is sent as null (a tombstone).")
    ] = None,
    on_error: Annotated[
        OnError, typer.Option("--on-error", help="At a line that cannot be sent: stop, or go on with the next one.")
    ] = OnError.STOP,
    partition: Annotated[int | None, typer.Option("--partition", "-p", min=0, help="Default: by key.")] = None,
    header: Annotated[list[str] | None, typer.Option("--header", "-H", help="name=value; may be repeated.")] = None,
    timestamp: Annotated[
        str | None, typer.Option("--timestamp", "-t", help="Milliseconds since 1970 or ISO 8601; default: now.")
    ] = None,
    acks: Annotated[str, typer.Option("--acks", help='"all", "leader" or "none".')] = "all",
    codec: Annotated[str, typer.Option("--codec", help='"none" or "zstd".')] = "none",
    timeout_ms: Annotated[
        int,
        typer.Option(
            "--timeout-ms",
            min=PRODUCER_DEFAULTS.linger_ms,
            max=86_400_000,
            help="Milliseconds for the delivery of a record.",
        ),
    ] = 30_000,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    cluster_id: ClusterId = None,
    as_json: Json = False,
) -> None:
    """Send records: one --value, the lines of a --file, or the lines of standard input."""
    if value is not None and file is not None:
        raise typer.BadParameter("give --value or --file, not both", param_hint="--value")
    if file is not None and str(file) != "-" and not file.is_file():
        raise typer.BadParameter(f"{file} is no file", param_hint="--file")
    if value is not None and key_separator is not None:
        raise typer.BadParameter("splits lines; with --value give the key with --key", param_hint="--key-separator")
    separator = None if key_separator is None else unescape(key_separator, "--key-separator")
    if separator == b"":
        raise typer.BadParameter("is empty", param_hint="--key-separator")
    null = None if null_value is None else null_value.encode()
    headers = [(name, text.encode()) for name, text in parse_pairs(header or [], "--header")] or None
    timestamp_ms = None if timestamp is None else parse_time_ms(timestamp, "--timestamp")
    tally = _Tally()
    producer = Producer(
        bootstrap,
        cluster_id=cluster_id,
        acks=acks,
        codec=codec,
        delivery_timeout_ms=timeout_ms,
        on_batch=tally.add,
    )
    fixed_key = None if key is None else key.encode()
    problems: list[str] = []

    def send(sent_value: bytes, sent_key: bytes | None) -> None:
        producer.send(
            topic,
            None if sent_value == null else sent_value,
            key=sent_key,
            partition=partition,
            timestamp_ms=timestamp_ms,
            headers=headers,
        )

    try:
        if value is not None:
            send(value.encode(), fixed_key)
        else:
            for number, line in enumerate(_lines(file), start=1):
                try:
                    line_key, line_value = _split(line, separator, fixed_key, allow_missing=allow_missing_key)
                    send(line_value, line_key)
                except UsageError as error:
                    problems.append(f"line {number}: {error.message}")
                    if on_error is OnError.STOP:
                        break
                    print_error(problems[-1])
    finally:
        try:
            producer.close()
        except DeliveryError as error:
            problems.append(f"not delivered: {error.message}")
    if as_json:
        print_json({"topic": topic, "records": tally.records, "partitions": tally.partitions(), "problems": problems})
    else:
        typer.echo(f"{tally.records} {'record' if tally.records == 1 else 'records'} to {topic}: {tally.text()}")
    if problems:
        if on_error is OnError.STOP or problems[-1].startswith("not delivered"):
            print_error(f"{problems[-1]}; {tally.records} records were stored")
        raise typer.Exit(1)


def _split(
    line: bytes, separator: bytes | None, fixed_key: bytes | None, *, allow_missing: bool
) -> tuple[bytes | None, bytes]:
    if separator is None:
        return fixed_key, line
    key, found, value = line.partition(separator)
    if found:
        return key, value
    if not allow_missing:
        raise UsageError(
            f"no separator {separator.decode(errors='backslashreplace')!r}; --allow-missing-key takes such lines"
        )
    return fixed_key, line


def _lines(file: Path | None) -> Iterator[bytes]:
    """Yield the lines without their line ends. Show a progress bar for a file on a terminal."""
    if file is None or str(file) == "-":
        yield from _strip(sys.stdin.buffer)
        return
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with file.open("rb") as source, Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(file.name, total=file.stat().st_size)
        done_bytes = 0
        for line in source:
            done_bytes += len(line)
            if done_bytes >= PROGRESS_STEP_BYTES:
                progress.advance(task, done_bytes)
                done_bytes = 0
            yield line.rstrip(b"\r\n")
        progress.advance(task, done_bytes)


def _strip(source: BinaryIO) -> Iterator[bytes]:
    for line in source:
        yield line.rstrip(b"\r\n")


class _Tally:
    """Acknowledged records by partition. The producer's background thread fills it; the command reads it after close()."""

    def __init__(self) -> None:
        self.records = 0
        self._ranges: dict[int, tuple[int, int, int]] = {}

    def add(self, receipt: BatchReceipt) -> None:
        """Count a batch."""
        if receipt.error is not None:
            return
        self.records += receipt.record_count
        if receipt.base_offset is None:
            return
        first, _, count = self._ranges.get(receipt.partition, (receipt.base_offset, 0, 0))
        end = receipt.base_offset + receipt.record_count
        self._ranges[receipt.partition] = (min(first, receipt.base_offset), end, count + receipt.record_count)

    def partitions(self) -> list[dict[str, int]]:
        """Return the partitions with first offset, end offset (exclusive) and record count."""
        return [
            {"partition": partition, "first_offset": first, "end_offset": end, "records": count}
            for partition, (first, end, count) in sorted(self._ranges.items())
        ]

    def text(self) -> str:
        """Return one line about all partitions."""
        if not self._ranges:
            return "not acknowledged" if self.records else "nothing was sent"
        return ", ".join(
            f"partition {partition} offsets {first} to {end - 1}"
            for partition, (first, end, _) in sorted(self._ranges.items())
        )
