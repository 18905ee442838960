# SPDX-License-Identifier: Apache-2.0
"""Images with some of every kind of row, and stores written as a log commits."""

from __future__ import annotations

from metaquorum.controller.commands import AllocateProducerIds, Bootstrap, DeleteTopic
from metaquorum.metadata import image_rows, record_codec
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.image_store import ImageStore
from metaquorum.metadata.records import MetadataRecord, PartitionRecord
from metaquorum.tests.controller_world import World, create_topic

EPOCH = 3


def write(store: ImageStore, image: MetadataImage, log: list[tuple[int, MetadataRecord]], *, batch: int = 3) -> None:
    """Replay a log on an image and a store, some records at a time, and write each batch."""
    for start in range(0, len(log), batch):
        note(store, image, log[start : start + batch])
        store.write()


def note(store: ImageStore, image: MetadataImage, log: list[tuple[int, MetadataRecord]], *, batch: int = 3) -> None:
    """Replay a log on an image and a store, some records at a time, as the loader does with committed batches."""
    for start in range(0, len(log), batch):
        keys: list[bytes] = []
        for offset, record in log[start : start + batch]:
            keys.extend(image_rows.touched_keys(record, image))
            image.replay(record, offset)
        store.note(image, keys, quorum_epoch=EPOCH)


def sample_world() -> World:
    """Return a world with something of everything."""
    world = World()
    world.run(Bootstrap())
    for broker_id in (1, 2, 3):
        world.start_broker(broker_id)
    world.run(create_topic("a", partition_count=5, configs={"segment.ms": "5", "flush.policy": "none"}))
    world.run(create_topic("b", partition_count=2))
    world.run(create_topic("gone", partition_count=3, configs={"segment.ms": "5"}))
    world.run(DeleteTopic(topic="gone"))
    world.run(AllocateProducerIds(broker_id=1, broker_epoch=world.epoch(1)))
    world.beat(2, want_shutdown=True)
    return world


def as_format_2(store: ImageStore, image: MetadataImage) -> None:
    """Rewrite a store in format 2: a row for each partition, and no blocks."""
    for topic in image.topics():
        for key in image_rows.block_keys(topic):
            store._database.delete(key)
        for each in topic.partitions:
            record = PartitionRecord(
                topic_id=topic.topic_id,
                partition=each.partition,
                replicas=each.replicas,
                isr=each.isr,
                leader_id=each.leader_id,
                leader_epoch=each.leader_epoch,
                partition_epoch=each.partition_epoch,
            )
            key = b"\x04" + topic.topic_id + each.partition.to_bytes(4, "big")
            store._database.put(key, record_codec.encode(record))
    state = store._database.get(b"\x00")
    assert isinstance(state, bytes)
    store._database.put(b"\x00", (2).to_bytes(4, "big") + state[4:])
