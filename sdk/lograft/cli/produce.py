# SPDX-License-Identifier: Apache-2.0
"""`lograft produce`: send a value, the lines of a file, or the lines of standard input."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from lograft.cli.completion import complete_topic
from lograft.cli.formats import InputRecord, Reader, pieces_of, reader_of
from lograft.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, ClusterId, Json, parse_pairs, parse_time_ms, unescape
from lograft.cli.output import counted, print_error, print_json
from lograft.cli.progress import Meter
from lograft.errors import DeliveryError, UsageError
from lograft.producer import Producer
from lograft.settings import PRODUCER_DEFAULTS
from lograft.types import BatchReceipt


class OnError(StrEnum):
    """What the command does at a line that it cannot send."""

    STOP = "stop"
    CONTINUE = "continue"


def produce(
    topic: Annotated[str, typer.Argument(help="Topic name.", autocompletion=complete_topic)],
    value: Annotated[str | None, typer.Option("--value", "-v", help="Send this one value.")] = None,
    tombstone: Annotated[
        bool,
        typer.Option("--tombstone", help="Send one record with the --key and a null value, which deletes the key."),
    ] = False,
    key: Annotated[
        str | None, typer.Option("--key", "-k", help="Key of every record that brings none of its own.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-l", help='Send the records of a file; "-" is standard input.')
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(
            "--format",
            "-f",
            help=r"What each record of the input is, as with consume: %k key, %s value, %p partition, %T timestamp in ms, "
            r"%h headers, with text between them; default '%s\n'. Or: json, what consume --json prints.",
        ),
    ] = None,
    key_separator: Annotated[
        str | None,
        typer.Option(
            "--key-separator", "-K", help=r"Text that ends the key in each line, such as ':' or '\t' (a tab)."
        ),
    ] = None,
    allow_missing_key: Annotated[
        bool, typer.Option("--allow-missing-key", help="A line without the separator is a value without a key.")
    ] = False,
    null_value: Annotated[
        str | None,
        typer.Option(
            "--null-value", help="A value that is this text is sent as null (a tombstone), with %k a key, too."
        ),
    ] = None,
    on_error: Annotated[
        OnError, typer.Option("--on-error", help="At a line that cannot be sent: stop, or go on with the next one.")
    ] = OnError.STOP,
    partition: Annotated[int | None, typer.Option("--partition", "-p", min=0, help="Default: by key.")] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", help="name=value, for each record; may be repeated.")
    ] = None,
    timestamp: Annotated[
        str | None,
        typer.Option("--timestamp", "-t", help="Milliseconds since 1970, ISO 8601, or 15m, 2h, 7d ago; default: now."),
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
    """Send records: one --value, the lines of a --file, or of standard input."""
    is_one = value is not None or tombstone
    if (value is not None) + tombstone + (file is not None) > 1:
        raise typer.BadParameter("give one of --value, --tombstone and --file", param_hint="--value")
    if tombstone and key is None:
        raise typer.BadParameter("deletes a key: give it with --key", param_hint="--tombstone")
    if file is not None and str(file) != "-" and not file.is_file():
        raise typer.BadParameter(f"{file} is no file", param_hint="--file")
    if is_one and (key_separator is not None or text is not None):
        raise typer.BadParameter("is for lines; with --value give the key with --key", param_hint="--key-separator")
    if text is not None and (key_separator is not None or allow_missing_key):
        raise typer.BadParameter("says where the key ends; --key-separator does, too", param_hint="--format")
    null = None if null_value is None else null_value.encode()
    read, end = _reader(text, key_separator, null, allow_missing_key=allow_missing_key)
    headers = tuple((name, text.encode()) for name, text in parse_pairs(header or [], "--header"))
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

    def send(record: InputRecord) -> None:
        producer.send(
            topic,
            record.value,
            key=fixed_key if record.key is None else record.key,
            partition=partition if record.partition is None else record.partition,
            timestamp_ms=timestamp_ms if record.timestamp_ms is None else record.timestamp_ms,
            headers=(*headers, *(record.headers or ())) or None,
        )

    try:
        if is_one:
            sent = None if value is None else value.encode()
            send(InputRecord(value=None if sent == null else sent))
        else:
            for number, piece in enumerate(_pieces(file, end), start=1):
                try:
                    send(read(piece))
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
        typer.echo(f"{counted(tally.records, 'record')} to {topic}: {tally.text()}")
    if problems:
        if on_error is OnError.STOP or problems[-1].startswith("not delivered"):
            stored = "1 record was stored" if tally.records == 1 else f"{tally.records} records were stored"
            print_error(f"{problems[-1]}; {stored}")
        raise typer.Exit(1)


def _reader(
    text: str | None, key_separator: str | None, null: bytes | None, *, allow_missing_key: bool
) -> tuple[Reader, bytes]:
    """Return what makes a record of a piece of the input, and what ends a piece."""
    if text is not None:
        return reader_of(text, null)
    if key_separator is None:
        return lambda line: InputRecord(value=None if line == null else line), b"\n"
    separator = unescape(key_separator, "--key-separator")
    if not separator:
        raise typer.BadParameter("is empty", param_hint="--key-separator")

    def read(line: bytes) -> InputRecord:
        key, found, value = line.partition(separator)
        if found:
            return InputRecord(key=key, value=None if value == null else value)
        if not allow_missing_key:
            shown = separator.decode(errors="backslashreplace")
            raise UsageError(f"no separator {shown!r}; --allow-missing-key takes such lines")
        return InputRecord(value=None if line == null else line)

    return read, b"\n"


def _pieces(file: Path | None, end: bytes) -> Iterator[bytes]:
    """Yield the records of the input as they are there. Show a progress bar on a terminal."""
    is_stdin = file is None or str(file) == "-"
    # What is typed needs no bar.
    is_shown = not (is_stdin and sys.stdin.isatty())
    total = None if file is None or is_stdin else file.stat().st_size
    name = "produce" if file is None or is_stdin else file.name
    with ExitStack() as stack:
        source = sys.stdin.buffer if file is None or is_stdin else stack.enter_context(file.open("rb"))
        meter = stack.enter_context(Meter(name, total, by_bytes=True, is_shown=is_shown))
        for piece in pieces_of(source, end, lambda size_bytes: meter.add(0, size_bytes)):
            meter.records += 1
            yield piece


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
            f"partition {partition} {f'offset {first}' if end - first == 1 else f'offsets {first} to {end - 1}'}"
            for partition, (first, end, _) in sorted(self._ranges.items())
        )
