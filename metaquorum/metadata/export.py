# SPDX-License-Identifier: Apache-2.0
"""Export of the committed image at one offset as lines of JSON, for people and tools.

Owns the form of the lines (docs/tools.md), their order, and the digest in the last one. The lines come from a checkpoint of the
image's database, so they show one offset however long the export takes. Law: two exports of one offset are equal, whichever node they
come from.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import shutil
from collections.abc import AsyncGenerator, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, assert_never

from metaquorum.metadata.awaited import unpack
from metaquorum.metadata.image_format import STATE_KEY, ImageState
from metaquorum.metadata.image_rows import AckSwitch, DeletedBlock, PartitionBlock
from metaquorum.metadata.image_store import items, open_read_only
from metaquorum.metadata.metadata_files import MetadataFiles
from metaquorum.metadata.records import (
    BrokerChangeRecord,
    BrokerRecord,
    ConfigRecord,
    ConfigResource,
    FeatureLevelRecord,
    MetadataRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RemoveBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from metaquorum.metadata.row_codec import decode_row
from metaquorum.metadata.state import PartitionImage, partitions_of_block

logger = logging.getLogger(__name__)

FORMAT: Final = 1
"""Version of the line format."""

MAX_EXPORTS: Final = 2
"""Exports that may run at the same time. Further ones are refused with OVERLOADED."""

PIECE_LINES: Final = 500
"""Lines in one message."""


class TooManyExportsError(Exception):
    """`MAX_EXPORTS` exports are running; try again."""


class MetadataExports:
    """Makes the exports of one node.

    Args:
        files: image and snapshots. A checkpoint lies beside the snapshots, where a restart removes remains of it.
        cluster_id: id of the cluster.
    """

    def __init__(self, files: MetadataFiles, *, cluster_id: str) -> None:
        self._files = files
        self._cluster_id = cluster_id
        self._running = 0

    async def pieces(self) -> AsyncGenerator[list[str]]:
        """Yield the lines of an export of the current image, in pieces.

        Raises:
            TooManyExportsError: too many exports are running; try again.
            ImageUnreadableError: the checkpoint cannot be read.
        """
        if self._running >= MAX_EXPORTS:
            raise TooManyExportsError(f"{MAX_EXPORTS} exports are running; try again")
        self._running += 1
        part = self._files.snapshots.part()
        loop = asyncio.get_running_loop()
        thread = ThreadPoolExecutor(1, thread_name_prefix="export")
        found = _pieces(part, self._cluster_id)
        try:
            self._files.store.write()
            await loop.run_in_executor(thread, self._files.store.checkpoint, part)
            while (piece := await loop.run_in_executor(thread, next, found, None)) is not None:
                yield piece
        finally:
            self._running -= 1
            try:
                # In the same thread: a caller that cancels the export in the middle of a piece does not stop the reading of that
                # piece.
                await loop.run_in_executor(thread, _clear, found, part)
            finally:
                thread.shutdown(wait=False)


def _clear(found: Generator[list[str]], part: Path) -> None:
    found.close()
    shutil.rmtree(part, ignore_errors=True)


def _pieces(directory: Path, cluster_id: str) -> Generator[list[str]]:
    digest = hashlib.sha256()
    count = 0
    piece: list[str] = []
    for entry in _entries(directory, cluster_id):
        line = json.dumps(entry, ensure_ascii=False, separators=(",", ":"))
        digest.update(line.encode())
        digest.update(b"\n")
        count += 1
        piece.append(line)
        if len(piece) >= PIECE_LINES:
            yield piece
            piece = []
    last = {"type": "end", "line_count": count, "sha256": digest.hexdigest()}
    yield [*piece, json.dumps(last, separators=(",", ":"))]


def _entries(directory: Path, cluster_id: str) -> Iterator[dict[str, object]]:
    database = open_read_only(directory)
    try:
        value = database.get(STATE_KEY)
        state = ImageState.decode(value if isinstance(value, bytes) else b"")
        yield {
            "type": "export",
            "format": FORMAT,
            "cluster_id": cluster_id,
            "metadata_offset": state.metadata_offset,
            "quorum_epoch": state.quorum_epoch,
        }
        voters = state.voters
        for voter in () if voters is None else voters.voters:
            yield {
                "type": "voter",
                "node_id": voter.key.node_id,
                "directory_id": voter.key.directory_id.hex(),
                "address": voter.address,
            }
        topics: dict[bytes, str] = {}
        for key, value in items(database):
            if key == STATE_KEY:
                continue
            row = decode_row(key, value)
            if isinstance(row, PartitionBlock):
                for partition in partitions_of_block(row.number, row.data):
                    yield _partition(partition, topics[row.topic_id])
                continue
            if isinstance(row, DeletedBlock):
                # Deleted topics would only be noise in a comparison of two exports.
                continue
            if isinstance(row, AckSwitch):
                yield _ack_switch(row, topics)
                continue
            if isinstance(row, TopicRecord):
                topics[row.topic_id] = row.topic
            yield _entry(row, topics)
    finally:
        database.close()


def _ack_switch(row: AckSwitch, topics: dict[bytes, str]) -> dict[str, object]:
    of_topic = row.resource is ConfigResource.TOPIC
    return {
        "type": "flush_policy_switch",
        "resource": row.resource.name.lower(),
        "name": topics[bytes.fromhex(row.resource_name)] if of_topic else row.resource_name,
        "metadata_offset": int.from_bytes(row.data, "big"),
    }


def _entry(record: MetadataRecord, topics: dict[bytes, str]) -> dict[str, object]:
    match record:
        case TopicRecord():
            return {"type": "topic", "topic": record.topic, "topic_id": record.topic_id.hex()}
        case ConfigRecord():
            of_topic = record.resource is ConfigResource.TOPIC
            name = topics[bytes.fromhex(record.resource_name)] if of_topic else record.resource_name
            resource = record.resource.name.lower()
            return {
                "type": "config",
                "resource": resource,
                "name": name,
                "config": record.name,
                "value": record.value,
            }
        case BrokerRecord():
            return _broker(record)
        case BrokerChangeRecord():
            return {"type": "leaving_broker", "broker_id": record.broker_id}
        case ProducerIdsRecord():
            return {"type": "producer_ids", "next_producer_id": record.next_producer_id}
        case FeatureLevelRecord():
            return {"type": "feature", "name": record.name, "level": record.level}
        case RemoveBrokerRecord() | RemoveTopicRecord() | PartitionRecord() | PartitionChangeRecord() | NoOpRecord():
            raise AssertionError(f"no row of an image: {record}")
        case _:
            assert_never(record)


def _partition(record: PartitionImage, topic: str) -> dict[str, object]:
    return {
        "type": "partition",
        "topic": topic,
        "partition": record.partition,
        "replicas": record.replicas,
        "isr": record.isr,
        "leader_id": record.leader_id,
        "leader_epoch": record.leader_epoch,
        "partition_epoch": record.partition_epoch,
        "elr": record.elr,
        "last_known_elr": record.last_known_elr,
        "adding": record.adding,
        "removing": record.removing,
        "awaited": [
            {"broker_id": each.broker_id, "log_directory_ids": [one.hex() for one in each.directory_ids]}
            for each in unpack(record.awaited)
        ],
    }


def _broker(record: BrokerRecord) -> dict[str, object]:
    return {
        "type": "broker",
        "broker_id": record.broker_id,
        "broker_epoch": record.broker_epoch,
        "incarnation_id": record.incarnation_id.hex(),
        "host": record.host,
        "port": record.port,
        "replication_port": record.replication_port,
        "rack": record.rack,
        "fenced": record.fenced,
        "unclean": record.unclean,
        "lost_directories": record.lost_directories,
        "replaced_log_directory_ids": [each.hex() for each in record.replaced_log_directory_ids],
        "replaced_broker_epoch": record.replaced_broker_epoch,
        "log_directory_ids": [each.hex() for each in record.log_directory_ids],
        "offline_log_directory_ids": [each.hex() for each in record.offline_log_directory_ids],
        "min_feature_level": record.min_feature_level,
        "max_feature_level": record.max_feature_level,
    }
