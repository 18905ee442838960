# SPDX-License-Identifier: Apache-2.0
"""Checks what programs pass to ingests and transactions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, cast

from lograft.errors import UsageError
from lograft.settings import check_range

MAX_INGEST_ID_BYTES: Final = 255
"""UTF-8 bytes of an ingest id."""

MAX_OWNER_BYTES: Final = 64
"""Bytes of the owner of an open."""

MAX_TOPICS: Final = 100
"""Topics of an ingest."""

TTL_RANGE_MS: Final = (10_000, 604_800_000)
"""Smallest and largest time to live in milliseconds, both inclusive."""


def check_ingest_id(ingest_id: object) -> str:
    """Return an ingest id that can be sent.

    Raises:
        UsageError: it is not 1 to 255 bytes of text.
    """
    if not isinstance(ingest_id, str) or not 1 <= len(ingest_id.encode(errors="replace")) <= MAX_INGEST_ID_BYTES:
        raise UsageError(f"an ingest id is a text of 1 to {MAX_INGEST_ID_BYTES} bytes, not {ingest_id!r:.100}")
    return ingest_id


def check_owner(owner: object) -> bytes:
    """Return the owner of an open that can be sent.

    Raises:
        UsageError: it is not 0 to 64 bytes.
    """
    if not isinstance(owner, bytes) or len(owner) > MAX_OWNER_BYTES:
        raise UsageError(f"an owner has 0 to {MAX_OWNER_BYTES} bytes, not {owner!r:.100}")
    return owner


def check_ingest_topics(topics: object) -> tuple[str, ...]:
    """Return the names of topics of an ingest, each once.

    Raises:
        UsageError: they are not 1 to 100 names.
    """
    given: list[object] = []
    if isinstance(topics, Iterable) and not isinstance(topics, str | bytes):
        given = list(dict.fromkeys(cast("Iterable[object]", topics)))
    names = tuple(each for each in given if isinstance(each, str) and each)
    if not 1 <= len(names) <= MAX_TOPICS or len(names) < len(given):
        raise UsageError(f"an ingest has a list of 1 to {MAX_TOPICS} topic names, not {topics!r:.100}")
    return names


def check_ttl(ttl_ms: object) -> None:
    """Check a time to live in milliseconds; 0: the coordinator's default.

    Raises:
        InvalidSettingError: it is out of range.
    """
    if ttl_ms != 0:
        check_range("ttl_ms", ttl_ms, *TTL_RANGE_MS)


def check_attached_topics(topics: object) -> tuple[str, ...] | dict[str, bytes]:
    """Return the topics of an ingest that is attached: names, or names with ids.

    Raises:
        UsageError: they are not 1 to 100.
    """
    names = check_ingest_topics(topics)
    return dict(cast("Mapping[str, bytes]", topics)) if isinstance(topics, Mapping) else names
