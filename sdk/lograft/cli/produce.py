# SPDX-License-Identifier: Apache-2.0
"""`lograft produce`: send a value, the lines of a file, or the lines of standard input."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, BinaryIO, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from lograft.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, ClusterId, Json, parse_pairs, parse_time_ms
from lograft.cli.output import print_json
from lograft.producer import Producer
from lograft.types import BatchReceipt, Headers

PROGRESS_STEP_BYTES: Final = 1 << 20
"""Bytes between two updates of the progress bar."""


def produce(
    topic: Annotated[str, typer.Argument(help="Topic name.")],
    value: Annotated[str | None, typer.Option("--value", "-v", help="Send this one value.")] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="Key of every record.")] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", exists=True, dir_okay=False, readable=True, help="Send each line of a file."),
    ] = None,
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", help="Text that ends the key in each line, such as a tab.")
    ] = None,
    partition: Annotated[int | None, typer.Option("--partition", "-p", min=0, help="Default: by key.")] = None,
    header: Annotated[list[str] | None, typer.Option("--header", "-H", help="name=value; may be repeated.")] = None,
    timestamp: Annotated[
        str | None, typer.Option("--timestamp", "-t", help="Milliseconds since 1970 or ISO 8601; default: now.")
    ] = None,
    acks: Annotated[str, typer.Option("--acks", help='"all", "leader" or "none".')] = "all",
    codec: Annotated[str, typer.Option("--codec", help='"none" or "zstd".')] = "none",
    timeout_ms: Annotated[
        int, typer.Option("--timeout-ms", min=1, max=86_400_000, help="Milliseconds for the delivery of a record.")
    ] = 30_000,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    cluster_id: ClusterId = None,
    as_json: Json = False,
) -> None:
    """Send records: one --value, the lines of a --file, or the lines of standard input."""
    if value is not None and file is not None:
        raise typer.BadParameter("give --value or --file, not both", param_hint="--value")
    if key_separator == "":
        raise typer.BadParameter("is empty", param_hint="--key-separator")
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
    try:
        if value is not None:
            producer.send(
                topic, value.encode(), key=fixed_key, partition=partition, timestamp_ms=timestamp_ms, headers=headers
            )
        else:
            separator = None if key_separator is None else key_separator.encode()
            for line in _lines(file):
                line_key, line_value = _split(line, separator, fixed_key)
                _send(producer, topic, line_value, line_key, partition, timestamp_ms, headers)
    finally:
        producer.close()
    if as_json:
        print_json({"topic": topic, "records": tally.records, "partitions": tally.partitions()})
    else:
        typer.echo(f"{tally.records} records to {topic}: {tally.text()}")


def _send(
    producer: Producer,
    topic: str,
    value: bytes,
    key: bytes | None,
    partition: int | None,
    timestamp_ms: int | None,
    headers: Headers | None,
) -> None:
    producer.send(topic, value, key=key, partition=partition, timestamp_ms=timestamp_ms, headers=headers)


def _split(line: bytes, separator: bytes | None, fixed_key: bytes | None) -> tuple[bytes | None, bytes]:
    if separator is None:
        return fixed_key, line
    key, found, value = line.partition(separator)
    return (key, value) if found else (fixed_key, line)


def _lines(file: Path | None) -> Iterator[bytes]:
    """Give the lines without their ends; with a progress bar for a file on a terminal."""
    if file is None:
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
    """What was acknowledged, by partition. Filled by the producer's background thread, read after close()."""

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
        """Partitions with their first offset, end offset (exclusive) and record count."""
        return [
            {"partition": partition, "first_offset": first, "end_offset": end, "records": count}
            for partition, (first, end, count) in sorted(self._ranges.items())
        ]

    def text(self) -> str:
        """One line about all partitions."""
        if not self._ranges:
            return "not acknowledged" if self.records else "nothing was sent"
        return ", ".join(
            f"partition {partition} offsets {first} to {end - 1}"
            for partition, (first, end, _) in sorted(self._ranges.items())
        )
