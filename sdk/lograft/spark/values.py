# SPDX-License-Identifier: Apache-2.0
"""Parses the text of one option, or says which option is wrong and what it accepts.

This module owns `OptionError` and the parsers of single values. Pure. It must not know which options exist
(`lograft.spark.options` does), and must not import PySpark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Final, cast

from lograft.errors import InvalidSettingError
from lograft.types import Position, TopicPartition

MAX_OFFSET: Final = 2**63 - 1
"""Largest offset, and largest timestamp in milliseconds, inclusive."""
MAX_PARTITION: Final = 2**31 - 1
"""Largest partition number, inclusive."""
EARLIEST_IN_JSON: Final = -2
"""The number that the Kafka connector uses for "earliest" in JSON offsets."""
LATEST_IN_JSON: Final = -1
"""The number that the Kafka connector uses for "latest" in JSON offsets."""

_TOPIC_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_SHOWN_CHARACTERS: Final = 80
_UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


class OptionError(InvalidSettingError):
    """An option of `format("lograft")` is unknown or malformed, or contradicts another.

    Attributes:
        option: name of the option, as the documentation spells it.
    """

    def __init__(self, option: str, problem: str) -> None:
        super().__init__(f"option {option}: {problem}")
        self.option = option


def shown(text: object) -> str:
    """Quote a value for an error message, cut to a readable length."""
    quoted = repr(text)
    return quoted if len(quoted) <= _SHOWN_CHARACTERS else f"{quoted[:_SHOWN_CHARACTERS]}..."


def parse_boolean(option: str, text: str) -> bool:
    """Return the boolean for `true` or `false`, in any case."""
    match text.strip().lower():
        case "true":
            return True
        case "false":
            return False
        case _:
            raise OptionError(option, f"takes true or false, not {shown(text)}")


def parse_integer(option: str, text: str, *, minimum: int, maximum: int = MAX_OFFSET) -> int:
    """Return a decimal integer between `minimum` and `maximum`, both inclusive."""
    number = _decimal(text.strip())
    if number is None or not minimum <= number <= maximum:
        raise OptionError(option, f"takes an integer from {minimum} to {maximum}, not {shown(text)}")
    return number


def parse_choice(option: str, text: str, choices: Sequence[str]) -> str:
    """Return one of `choices` in lower case. The text may be in any case."""
    choice = text.strip().lower()
    if choice not in choices:
        raise OptionError(option, f"takes {' or '.join(choices)}, not {shown(text)}")
    return choice


def parse_names(option: str, text: str, names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of a comma-separated list, in its order and in the spelling of `names`. The text may be in any case."""
    by_lower = {name.lower(): name for name in names}
    chosen: list[str] = []
    for part in text.split(","):
        name = by_lower.get(part.strip().lower())
        if name is None:
            raise OptionError(option, f"{shown(part.strip())} is none of {', '.join(names)}")
        if name in chosen:
            raise OptionError(option, f"names {name} twice")
        chosen.append(name)
    return tuple(chosen)


def parse_duration_ms(option: str, text: str) -> int:
    """Return the milliseconds of a duration as Spark writes it: `500ms`, `30s`, `15m`, `2h`, `1d`; a bare number is milliseconds."""
    found = re.fullmatch(r"([0-9]{1,15})\s*(ms|s|m|min|h|d)?", text.strip().lower())
    if found is None:
        raise OptionError(option, f"takes a duration such as 500ms, 30s, 15m, 2h or 1d, not {shown(text)}")
    return int(found[1]) * _UNIT_MS[found[2] or "ms"]


def parse_topic(option: str, text: str) -> str:
    """Return one topic name.

    The server has the same rule. It is checked here too, so that the error names the option and comes before any connection.
    """
    topic = text.strip()
    if _TOPIC_NAME.fullmatch(topic) is None or topic in {".", ".."}:
        raise OptionError(
            option,
            f"{shown(topic)} is not a topic name: 1 to 249 of the characters A-Z a-z 0-9 . _ - and neither . nor ..",
        )
    return topic


def parse_topics(option: str, text: str) -> tuple[str, ...]:
    """Return the topic names of a comma-separated list without duplicates, ascending."""
    topics = tuple(sorted({parse_topic(option, part) for part in text.split(",") if part.strip()}))
    if not topics:
        raise OptionError(option, "names no topic")
    return topics


def parse_pattern(option: str, text: str) -> str:
    r"""Check a regular expression for whole topic names.

    Kafka's connector uses Java's dialect, Lograft uses Python's `re`. They agree on what topic patterns use. What Python does
    not know (`\p{Alpha}`, `[a-z&&[^b]]`) is an error or has Python's meaning.
    """
    try:
        re.compile(text)
    except re.error as error:
        raise OptionError(option, f"{shown(text)} is not a regular expression of Python's re: {error}") from error
    if not text:
        raise OptionError(option, "is empty")
    return text


def parse_assignment(option: str, text: str) -> tuple[TopicPartition, ...]:
    """Return the partitions of `{"topic": [0, 1]}` without duplicates, ascending."""
    example = '{"topic": [0, 1]}'
    chosen: list[TopicPartition] = []
    for name, numbers in _json_object(option, text, example).items():
        topic = parse_topic(option, name)
        if not isinstance(numbers, list) or not numbers:
            raise OptionError(option, f"topic {topic} takes a list of partitions, as in {example}")
        for number in cast("list[object]", numbers):
            if not _is_integer(number) or not 0 <= cast("int", number) <= MAX_PARTITION:
                raise OptionError(
                    option, f"{shown(number)} is not a partition of topic {topic}: partitions count from 0"
                )
            chosen.append(TopicPartition(topic, cast("int", number)))
    if not chosen:
        raise OptionError(option, f"names no partition; write it as {example}")
    if len(set(chosen)) != len(chosen):
        raise OptionError(option, "names a partition twice")
    return tuple(sorted(chosen))


def parse_offsets(option: str, text: str, *, forbidden: Position | None) -> dict[TopicPartition, int | Position]:
    """Return the offsets of `{"topic": {"0": 23, "1": -2}}`. -2 stands for earliest, -1 for latest.

    Args:
        option: name of the option.
        text: the JSON.
        forbidden: the position that this option does not accept (latest for a start, earliest for an end); None: it takes both.
    """
    offsets: dict[TopicPartition, int | Position] = {}
    for partition, number in _json_partitions(option, text, '{"topic": {"0": 23, "1": -2}}').items():
        if number < EARLIEST_IN_JSON:
            raise OptionError(option, f"{partition}: {number} is no offset (from 0; -2 is earliest, -1 is latest)")
        position = {EARLIEST_IN_JSON: Position.EARLIEST, LATEST_IN_JSON: Position.LATEST}.get(number)
        if position is not None and position is forbidden:
            raise OptionError(option, f"{partition}: {number} ({position.value}) is not allowed here in a batch query")
        offsets[partition] = number if position is None else position
    return offsets


def parse_timestamps(option: str, text: str) -> dict[TopicPartition, int]:
    """Return the timestamps of `{"topic": {"0": 1000, "1": 1000}}`, in milliseconds since 1970-01-01 UTC."""
    timestamps = _json_partitions(option, text, '{"topic": {"0": 1700000000000}}')
    for partition, timestamp_ms in timestamps.items():
        if timestamp_ms < 0:
            raise OptionError(option, f"{partition}: {timestamp_ms} is not a timestamp in milliseconds, from 0")
    return timestamps


def _json_partitions(option: str, text: str, example: str) -> dict[TopicPartition, int]:
    numbers: dict[TopicPartition, int] = {}
    for name, by_partition in _json_object(option, text, example).items():
        topic = parse_topic(option, name)
        if not isinstance(by_partition, dict) or not by_partition:
            raise OptionError(option, f"topic {topic} takes an object by partition, as in {example}")
        for key, number in cast("dict[str, object]", by_partition).items():
            partition = _decimal(key)
            if partition is None or str(partition) != key or not 0 <= partition <= MAX_PARTITION:
                raise OptionError(option, f"{shown(key)} is not a partition of topic {topic}: partitions count from 0")
            if not _is_integer(number) or cast("int", number) > MAX_OFFSET:
                raise OptionError(option, f"{topic}-{partition} takes an integer, not {shown(number)}")
            numbers[TopicPartition(topic, partition)] = cast("int", number)
    if not numbers:
        raise OptionError(option, f"names no partition; write it as {example}")
    return numbers


def _json_object(option: str, text: str, example: str) -> Mapping[str, object]:
    def refuse_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise OptionError(option, "the JSON has a name twice in one object")
        return found

    try:
        found: object = json.loads(text, object_pairs_hook=refuse_repeats)
    except (ValueError, RecursionError) as error:
        if isinstance(error, OptionError):
            raise
        raise OptionError(option, f"{shown(text)} is not JSON ({error}); write it as {example}") from error
    if not isinstance(found, dict):
        raise OptionError(option, f"takes a JSON object as {example}, not {shown(text)}")
    return cast("dict[str, object]", found)


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _decimal(text: str) -> int | None:
    # Only ASCII digits with an optional minus sign: int() would also accept "1_000", " 7 " and digits of other scripts.
    return int(text) if re.fullmatch(r"-?[0-9]{1,20}", text) else None
