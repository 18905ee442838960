# SPDX-License-Identifier: Apache-2.0
"""The file of `lograft topics create --file`: one topic on each line.

A line is a name, or a JSON object with `topic` and, where they differ from the command's options, `partitions`,
`replication_factor` and `configs`. Empty lines and lines that begin with "#" are ignored.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

import typer

from lograft.cli.output import counted
from lograft.errors import LograftError
from lograft.types import CreatedTopic, NewTopic

MAX_FILE_BYTES: Final = 256 * 1024 * 1024
"""Largest file that is read, in bytes."""

SHOWN_REFUSALS: Final = 20
"""Refused topics that are named. The others are only counted."""

_FIELDS: Final = {"topic": str, "partitions": int, "replication_factor": int, "configs": dict}


def read_topics(file: Path, defaults: NewTopic) -> list[NewTopic]:
    """Read a file of topics; "-" is standard input.

    Args:
        file: path of the file.
        defaults: the values for what a line does not give. Its name is not used.

    Raises:
        typer.BadParameter: the path is not a file, a line is not a topic, or a line repeats a topic. The text has the line
            number. Nothing was created.
    """
    if str(file) == "-":
        return parse_topics(sys.stdin, defaults)
    if not file.is_file():
        raise typer.BadParameter(f"{file} is no file", param_hint="--file")
    if file.stat().st_size > MAX_FILE_BYTES:
        raise typer.BadParameter(f"{file} has more than {MAX_FILE_BYTES} bytes", param_hint="--file")
    with file.open(encoding="utf-8") as source:
        return parse_topics(source, defaults)


def parse_topics(lines: Iterable[str], defaults: NewTopic) -> list[NewTopic]:
    """Parse lines; see `read_topics`."""
    topics: dict[str, NewTopic] = {}
    try:
        for number, line in enumerate(lines, start=1):
            text = line.strip()
            if not text or text.startswith("#"):
                continue
            topic = _topic(text, defaults, number)
            if topic.topic in topics:
                raise _bad(number, f"topic {topic.topic!r} was named before")
            topics[topic.topic] = topic
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"the file is not UTF-8: {error}", param_hint="--file") from None
    return list(topics.values())


def _topic(text: str, defaults: NewTopic, number: int) -> NewTopic:
    if not text.startswith("{"):
        return replace(defaults, topic=text)
    try:
        fields = cast("dict[str, Any]", json.loads(text))
    except json.JSONDecodeError as error:
        raise _bad(number, f"no JSON object: {error}") from None
    for name, value in fields.items():
        kind = _FIELDS.get(name)
        if kind is None:
            raise _bad(number, f"unknown field {name!r}; known are {', '.join(_FIELDS)}")
        if not isinstance(value, kind) or isinstance(value, bool):
            raise _bad(number, f"{name} is {value!r}")
    if "topic" not in fields:
        raise _bad(number, 'the field "topic" is missing')
    own = cast("dict[str, object]", fields.get("configs", {}))
    return NewTopic(
        topic=fields["topic"],
        partition_count=fields.get("partitions", defaults.partition_count),
        replication_factor=fields.get("replication_factor", defaults.replication_factor),
        configs={**defaults.configs, **{name: _config(value) for name, value in own.items()}},
    )


def _config(value: object) -> str:
    return json.dumps(value) if isinstance(value, bool) else str(value)


def _bad(number: int, problem: str) -> typer.BadParameter:
    return typer.BadParameter(f"line {number}: {problem}", param_hint="--file")


def report(results: list[CreatedTopic], present: int) -> None:
    """Print a summary of the results, and name the refused topics on standard error.

    Raises:
        typer.Exit: with 1 if topics were refused.
    """
    refused = [(each.topic, each.error) for each in results if each.error is not None]
    created = sum(each.error is None for each in results)
    typer.echo(f"{counted(created, 'topic')} created" + (f", {present} existed" if present else ""))
    for topic, error in refused[:SHOWN_REFUSALS]:
        assert isinstance(error, LograftError), f"a refusal of {topic} without a reason"
        typer.echo(f"{topic}: {error.code.name}: {error.message}", err=True)
    if len(refused) > SHOWN_REFUSALS:
        typer.echo(f"and {len(refused) - SHOWN_REFUSALS} more", err=True)
    if refused:
        raise typer.Exit(1)
