# SPDX-License-Identifier: Apache-2.0
"""Options that several commands share, and the parsing of their values."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Final

import typer

from lograft.types import TopicPartition

DEFAULT_BOOTSTRAP: Final = "127.0.0.1:9640"
"""The address where `lograft dev` listens."""

Bootstrap = Annotated[
    str,
    typer.Option("--bootstrap", "-b", envvar="LOGRAFT_BOOTSTRAP", help="host:port of a broker, several with commas."),
]
ClusterId = Annotated[
    str | None,
    typer.Option("--cluster-id", envvar="LOGRAFT_CLUSTER_ID", help="Refuse every other cluster than this one."),
]
TimeoutMs = Annotated[
    int, typer.Option("--timeout-ms", min=1, max=3_600_000, help="Milliseconds after which a call has failed.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables and text.")]

MAX_PARTITION_DIGITS: Final = 9
"""Digits of the largest accepted partition number."""

DEFAULT_TIMEOUT_MS: Final = 10_000
"""Milliseconds that a call of the command line may take."""


def parse_pairs(texts: Sequence[str], what: str) -> list[tuple[str, str]]:
    """Parse "name=value" options.

    Raises:
        typer.BadParameter: a text has no "=" or no name.
    """
    pairs: list[tuple[str, str]] = []
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise typer.BadParameter(f"{text!r} is not name=value", param_hint=what)
        pairs.append((name, value))
    return pairs


def parse_partitions(texts: Sequence[str]) -> list[TopicPartition | str]:
    """Parse "topic:partition" arguments. A topic without a partition is returned as its name.

    Raises:
        typer.BadParameter: an argument has no topic, or what follows it is not a partition number.
    """
    found: list[TopicPartition | str] = []
    for text in texts:
        topic, separator, number = text.partition(":")
        plain = number.isascii() and number.isdigit() and len(number) <= MAX_PARTITION_DIGITS
        if not topic or (separator and not plain):
            raise typer.BadParameter(f"{text!r} is neither TOPIC nor TOPIC:PARTITION", param_hint="TOPIC[:PARTITION]")
        found.append(TopicPartition(topic, int(number)) if separator else topic)
    return found


def parse_time_ms(text: str, what: str) -> int:
    """Return a time in milliseconds since 1970-01-01 UTC.

    Args:
        text: such a number, an ISO 8601 time (UTC without a zone), "now", or how long ago: 90s, 15m, 2h, 7d.
        what: the option, for the error.

    Raises:
        typer.BadParameter: the text is nothing of that.
    """
    if text.isdecimal():
        return int(text)
    ago = _AGO.fullmatch(text)
    if ago is not None or text == "now":
        return int(time.time() * 1000) - (int(ago.group(1)) * _UNITS_MS[ago.group(2)] if ago is not None else 0)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is neither milliseconds since 1970, nor a time such as 2026-01-31T12:00:00, nor so long ago as "
            "90s, 15m, 2h or 7d",
            param_hint=what,
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)


def format_time(timestamp_ms: int) -> str:
    """Format a timestamp as ISO 8601 in UTC with milliseconds."""
    moment = datetime.fromtimestamp(timestamp_ms / 1000, tz=UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def unescape(text: str, option: str) -> bytes:
    r"""Return the bytes of an option in which \t, \n, \r, \0, \\ and \xNN stand for one byte each.

    Raises:
        typer.BadParameter: another character follows a backslash.
    """
    found = bytearray()
    end = 0
    for match in _ESCAPE.finditer(text):
        found += text[end : match.start()].encode()
        code = match.group(1)
        byte = _ESCAPES.get(code)
        if byte is None and len(code) == 3:
            byte = int(code[1:], 16)
        if byte is None:
            known = r"\t \n \r \0 \\ and \xNN"
            raise typer.BadParameter(f"{match.group()!r} stands for nothing; known are {known}", param_hint=option)
        found.append(byte)
        end = match.end()
    return bytes(found + text[end:].encode())


_ESCAPE: Final = re.compile(r"\\(x[0-9a-fA-F]{2}|.?)", re.DOTALL)
_ESCAPES: Final = {"t": 9, "n": 10, "r": 13, "0": 0, "\\": 92}
_AGO: Final = re.compile(r"([0-9]{1,9})([smhd])", re.ASCII)
_UNITS_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
