# SPDX-License-Identifier: Apache-2.0
"""Exports of the metadata: fetching and checking one, and comparing two.

This module owns the digest and the comparison. An export is a list of lines of JSON; docs/tools.md describes them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from lograft._admin.calls import AdminCalls
from lograft._client.stubs import admin_service
from lograft.errors import CorruptDataError, ProtocolError
from lograft.v1 import admin_pb2

if TYPE_CHECKING:
    from lograft._client.cluster import Attempt

MAX_EXPORT_CHARACTERS: Final = 2**30
"""Largest export that the client holds in memory, in characters."""

_KEYS: Final = {
    "voter": ("node_id",),
    "feature": ("name",),
    "broker": ("broker_id",),
    "leaving_broker": ("broker_id",),
    "topic": ("topic",),
    "partition": ("topic", "partition"),
    "config": ("resource", "name", "config"),
    "flush_policy_switch": ("resource", "name"),
    "producer_ids": (),
}
"""The fields that identify an entry of each type."""

Entry = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataChange:
    """A difference between two exports.

    Attributes:
        kind: type of the entry: topic, partition, config, broker, voter...
        name: what identifies the entry, as text: `orders:3`, `topic orders retention.ms`.
        before: the old values of the fields that differ; None if the entry did not exist.
        after: the new values of the same fields; None if the entry no longer exists.
    """

    kind: str
    name: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None


async def export_metadata(calls: AdminCalls) -> list[str]:
    """Export the whole metadata at one offset, as lines of JSON in a stable order. docs/tools.md describes the lines.

    The first line has the offset. The last line has a digest, which the client has checked. All lines are in memory: about 250
    bytes for each partition of the cluster.

    Raises:
        CorruptDataError: the digest does not match the lines.
        LograftError: no complete export came in time.
    """
    request = admin_pb2.ExportMetadataRequest(cluster_id=calls.cluster.cluster_id)

    async def work(attempt: Attempt) -> list[str]:
        lines: list[str] = []
        size = 0
        stub = admin_service(attempt.channel)
        call = stub.ExportMetadata(request, timeout=attempt.timeout_s)
        try:
            async for piece in call:
                lines += piece.lines
                size += sum(map(len, piece.lines))
                if size > MAX_EXPORT_CHARACTERS:
                    raise ProtocolError(f"the export has more than {MAX_EXPORT_CHARACTERS} characters")
        finally:
            call.cancel()
        return lines

    lines = await calls.cluster.call(work, timeout_ms=calls.timeout_ms)
    read_export(lines)
    return lines


def read_export(lines: Sequence[str]) -> list[Entry]:
    """Check an export and return its entries: the first one has the offset, and the last line (the digest) is left out.

    Raises:
        CorruptDataError: a line is missing, added or changed, or the lines are not an export.
    """
    try:
        entries = [cast("Entry", json.loads(line)) for line in lines]
        kinds = [entry["type"] for entry in entries]
    except (ValueError, LookupError, TypeError) as error:
        raise CorruptDataError(f"this is no export of metadata: {error!r}") from None
    if not entries or kinds[0] != "export" or kinds[-1] != "end":
        raise CorruptDataError("this is no export of metadata, or it is cut: its first and last line are not there")
    digest = hashlib.sha256()
    for line in lines[:-1]:
        digest.update(line.encode() + b"\n")
    end = entries.pop()
    if end.get("line_count") != len(entries) or end.get("sha256") != digest.hexdigest():
        raise CorruptDataError("the digest of the export does not match its lines: it was changed or cut")
    if entries[0].get("format") != 1:
        raise CorruptDataError(f"the export has format {entries[0].get('format')}; install a version that knows it")
    return entries


def diff_exports(before: Sequence[Entry], after: Sequence[Entry]) -> list[MetadataChange]:
    """Return the differences between two exports that `read_export` returned, ordered by kind and name.

    For a topic that was created or deleted, the result leaves out its partitions and configs.
    """
    old, new = _by_key(before), _by_key(after)
    gone = {key[1] for key in old.keys() ^ new.keys() if key[0] == "topic"}
    changes: list[MetadataChange] = []
    for key in sorted(old.keys() | new.keys(), key=lambda key: (key[0], *map(_sortable, key[1:]))):
        kind = str(key[0])
        is_topic_config = kind in ("config", "flush_policy_switch") and key[1] == "topic"
        of_topic = key[1] if kind == "partition" else key[2] if is_topic_config else None
        if of_topic in gone:
            continue
        was, now = old.get(key), new.get(key)
        if was == now:
            continue
        differing = _differing(was or {}, now or {})
        changes.append(
            MetadataChange(
                kind=kind,
                name=(":" if kind == "partition" else " ").join(str(part) for part in key[1:] if part != ""),
                before=None if was is None else {name: was.get(name) for name in differing},
                after=None if now is None else {name: now.get(name) for name in differing},
            )
        )
    return changes


def _differing(was: Entry, now: Entry) -> list[str]:
    return [name for name in sorted(was.keys() | now.keys()) if was.get(name) != now.get(name)]


def _by_key(entries: Sequence[Entry]) -> dict[tuple[Any, ...], Entry]:
    found: dict[tuple[Any, ...], Entry] = {}
    for entry in entries[1:]:
        kind = entry["type"]
        keys = _KEYS.get(kind, tuple(sorted(name for name in entry if name != "type")))
        rest = {name: value for name, value in entry.items() if name not in ("type", *keys)}
        found[(kind, *(entry[name] for name in keys))] = rest
    return found


def _sortable(part: object) -> tuple[int, str]:
    return (part, "") if isinstance(part, int) else (0, str(part))
