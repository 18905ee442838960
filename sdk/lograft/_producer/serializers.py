# SPDX-License-Identifier: Apache-2.0
"""Applies the program's serializers to keys and values, and checks what they return. It holds no lock meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from lograft.errors import InvalidSettingError, UsageError

Serializer: TypeAlias = Callable[[Any], "bytes | None"]
"""Returns the bytes of a key or value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Serializers:
    """The serializers of a producer; None where keys or values are bytes already."""

    key: Serializer | None
    value: Serializer | None

    def __post_init__(self) -> None:
        for name, given in (("key_serializer", self.key), ("value_serializer", self.value)):
            check: object = given
            if check is not None and not callable(check):
                raise InvalidSettingError(f"{name} is a function that returns bytes, not {given!r}")

    def one(self, topic: str, value: object, key: object) -> tuple[object, object]:
        """Return the value and the key of a record as bytes. None stays None, and no serializer sees it.

        Raises:
            UsageError: a serializer failed, or returned something else than bytes.
        """
        return _apply("value", self.value, topic, value), _apply("key", self.key, topic, key)

    def many(
        self, topic: str, values: Sequence[Any], keys: Sequence[Any] | None
    ) -> tuple[Sequence[Any], Sequence[Any] | None]:
        """Return values and keys as bytes. The producer has taken nothing yet when a serializer fails.

        Raises:
            UsageError: as `one`.
        """
        if self.value is not None:
            values = [_apply("value", self.value, topic, value) for value in values]
        if self.key is not None and keys is not None:
            keys = [_apply("key", self.key, topic, key) for key in keys]
        return values, keys


def serializers_of(key: Serializer | None, value: Serializer | None) -> Serializers | None:
    """Return the serializers of a producer; None if it has none, so that its records take the fast path.

    Raises:
        InvalidSettingError: a serializer is no function.
    """
    serializers = Serializers(key=key, value=value)
    return None if key is None and value is None else serializers


def _apply(name: str, serializer: Serializer | None, topic: str, given: object) -> object:
    if serializer is None or given is None:
        return given
    try:
        result = cast("object", serializer(given))
    except Exception as error:
        raise UsageError(
            f"{name}_serializer failed for a {type(given).__name__} for topic {topic!r}: {type(error).__name__}: {error}"
        ) from error
    if result is not None and not isinstance(result, bytes | bytearray | memoryview):
        raise UsageError(
            f"{name}_serializer returned {type(result).__name__} for a {type(given).__name__} for topic {topic!r}; it must "
            "return bytes"
        )
    return cast("object", result)
