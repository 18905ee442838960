# SPDX-License-Identifier: Apache-2.0
"""The configs of a topic: names, defaults, ranges, meaning.

Owns the table that everything else is derived from: validation at creation, the effective settings of a topic, what
DescribeTopic lists. Must not know how the log engine uses them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Final

from lograft.wire.limits import DEFAULT_MAX_MESSAGE_BYTES, MAX_BATCH_BYTES


class FlushPolicy(Enum):
    """When appended records count as stored."""

    ACK = "ack"
    """Only when flushed: an acknowledged record is on stable storage."""
    INTERVAL = "interval"
    """At once; a flush follows within `flush.interval.ms`."""
    NONE = "none"
    """At once; flushing is left to the operating system."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """Effective settings of one topic.

    Attributes:
        segment_bytes: size at which a segment is closed and the next begun.
        segment_ms: age, by record timestamps, at which a segment is closed.
        index_interval_bytes: bytes of batches between two entries of the sparse index.
        max_message_bytes: most bytes of one batch, header included.
        flush_policy: when a record counts as stored.
        flush_interval_ms: longest time between flushes under `FlushPolicy.INTERVAL`.
    """

    segment_bytes: int
    segment_ms: int
    index_interval_bytes: int
    max_message_bytes: int
    flush_policy: FlushPolicy
    flush_interval_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigDefinition:
    """One config. Either `choices` is set, or the value is an integer from `minimum` to `maximum`, both inclusive."""

    name: str
    default: str
    meaning: str
    minimum: int = 0
    maximum: int = 0
    choices: tuple[str, ...] = ()

    def problem(self, value: str) -> str | None:
        """Say why `value` does not fit, or None when it does."""
        if self.choices:
            return None if value in self.choices else f"{self.name} must be one of {', '.join(self.choices)}"
        # Only plain ASCII digits: int() would also take "1_000", " 7" and digits of other scripts.
        plain = value.isascii() and value.isdigit() and len(value) <= MAX_DIGITS
        if plain and self.minimum <= int(value) <= self.maximum:
            return None
        return f"{self.name} must be an integer from {self.minimum} to {self.maximum}"


MAX_DIGITS: Final = 19
"""Digits of the largest 64-bit integer; a longer value is refused before it is converted."""

_MAX_INT32: Final = 2**31 - 1
_MAX_INT64: Final = 2**63 - 1

_DEFINITIONS: Final = (
    ConfigDefinition(
        name="segment.bytes",
        default=str(1024**3),
        minimum=16 * 1024,
        maximum=_MAX_INT32,
        meaning="size at which a segment file is closed and the next one begun, in bytes",
    ),
    ConfigDefinition(
        name="segment.ms",
        default=str(7 * 24 * 3600 * 1000),
        minimum=1,
        maximum=_MAX_INT64,
        meaning="age at which a segment file is closed and the next one begun, in milliseconds",
    ),
    ConfigDefinition(
        name="index.interval.bytes",
        default="4096",
        minimum=1,
        maximum=_MAX_INT32,
        meaning="bytes of batches between two entries of the offset index",
    ),
    ConfigDefinition(
        name="max.message.bytes",
        default=str(DEFAULT_MAX_MESSAGE_BYTES),
        minimum=1024,
        maximum=MAX_BATCH_BYTES,
        meaning="largest batch that is accepted, in bytes, as sent (after compression)",
    ),
    ConfigDefinition(
        name="flush.policy",
        default=FlushPolicy.ACK.value,
        choices=tuple(policy.value for policy in FlushPolicy),
        meaning="when a record counts as stored: flushed (ack), flushed soon (interval), written (none)",
    ),
    ConfigDefinition(
        name="flush.interval.ms",
        default="1000",
        minimum=1,
        maximum=_MAX_INT32,
        meaning="longest time between flushes under flush.policy=interval, in milliseconds",
    ),
)

TOPIC_CONFIGS: Final[Mapping[str, ConfigDefinition]] = MappingProxyType(
    {definition.name: definition for definition in sorted(_DEFINITIONS, key=lambda definition: definition.name)}
)
"""All configs of a topic by name, ascending."""


def problem(configs: Mapping[str, str]) -> str | None:
    """Say what is wrong with the configs of a topic, or None when every name is known and every value fits."""
    for name in sorted(configs):
        definition = TOPIC_CONFIGS.get(name)
        if definition is None:
            return f"unknown topic config {name[:100]!r}; known are {', '.join(TOPIC_CONFIGS)}"
        found = definition.problem(configs[name])
        if found is not None:
            return f"{found}, not {configs[name][:100]!r}"
    return None


def effective(configs: Mapping[str, str]) -> TopicSettings:
    """Return the settings of a topic: what is set for it, else the defaults. The configs must be valid."""

    def value(name: str) -> str:
        return configs.get(name, TOPIC_CONFIGS[name].default)

    return TopicSettings(
        segment_bytes=int(value("segment.bytes")),
        segment_ms=int(value("segment.ms")),
        index_interval_bytes=int(value("index.interval.bytes")),
        max_message_bytes=int(value("max.message.bytes")),
        flush_policy=FlushPolicy(value("flush.policy")),
        flush_interval_ms=int(value("flush.interval.ms")),
    )
