# SPDX-License-Identifier: Apache-2.0
"""The naming rule of topics: 1 to 249 of the characters A-Z a-z 0-9 . _ -, but not "." or "..". It is part of the public API.

Names that begin with `__` belong to the system: brokers make such topics when they need them, and nobody else creates, deletes or grows
them, or produces to them. Whoever serves a client asks `reserved_problem`.
"""

from __future__ import annotations

import re
from typing import Final

MAX_CHARACTERS: Final = 249
"""Longest topic name."""

INTERNAL_PREFIX: Final = "__"
"""Begin of the names of internal topics."""

STAGING_PREFIX: Final = "__staging-"
"""Begin of the names of staging topics (docs/ingest.md). The id of the topic that they belong to follows, in hex."""

_ALLOWED: Final = re.compile(r"[A-Za-z0-9._-]+")
_HEX_ID: Final = re.compile(r"[0-9a-f]{32}")
_SHOWN_CHARACTERS: Final = 60


def problem(topic: str) -> str | None:
    """Return why a topic name is invalid, or None if it is valid. The text shows at most 60 characters of the name."""
    if not topic:
        return "a topic name must not be empty"
    if len(topic) > MAX_CHARACTERS:
        return f"a topic name has at most {MAX_CHARACTERS} characters, this one has {len(topic)}"
    if topic in (".", ".."):
        return f"a topic must not be named {topic!r}"
    # fullmatch, because `$` would let a trailing line feed pass.
    if _ALLOWED.fullmatch(topic) is None:
        return f"a topic name has only the characters A-Z a-z 0-9 . _ -, not {topic[:_SHOWN_CHARACTERS]!a}"
    return None


def is_internal(topic: str) -> bool:
    """Return True for the name of a topic of the system."""
    return topic.startswith(INTERNAL_PREFIX)


def staging_topic(topic_id: bytes) -> str:
    """Return the name of the staging topic of a topic."""
    return STAGING_PREFIX + topic_id.hex()


def staged_topic_id(topic: str) -> bytes | None:
    """Return the id of the topic that a staging topic belongs to; None: this is not the name of a staging topic."""
    hex_id = topic.removeprefix(STAGING_PREFIX)
    if hex_id == topic or _HEX_ID.fullmatch(hex_id) is None:
        return None
    return bytes.fromhex(hex_id)


def reserved_problem(topic: str) -> str | None:
    """Return why a client may not change a topic of this name, or None if it may."""
    if not is_internal(topic):
        return None
    name = topic[:_SHOWN_CHARACTERS]
    return f"{name!a}: topics whose names begin with {INTERNAL_PREFIX} belong to the system; choose another name"
