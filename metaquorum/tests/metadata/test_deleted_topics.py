# SPDX-License-Identifier: Apache-2.0
"""Ids of deleted topics: in order, bounded, equal in every image, and kept through a reload or a snapshot."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from metaquorum.controller.commands import Bootstrap, DeleteTopic
from metaquorum.metadata import deleted_topics, image_rows
from metaquorum.metadata.deleted_topics import BLOCK_IDS, ID_BYTES, DeletedTopics
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.image_store import open_image
from metaquorum.tests.controller_world import World, create_topic, view
from metaquorum.tests.image_samples import write


def an_id(number: int) -> bytes:
    """Return a topic id."""
    return number.to_bytes(ID_BYTES, "big")


def world_after(deletions: int) -> tuple[World, list[bytes]]:
    """Return a world in which some topics were created and deleted, and their ids in the order of deletion."""
    world = World()
    world.run(Bootstrap())
    world.start_broker(1)
    world.run(create_topic("stays"))
    gone: list[bytes] = []
    for number in range(deletions):
        command = replace(create_topic("gone"), topic_id=an_id(number + 1))
        world.run(command)
        world.run(DeleteTopic(topic="gone"))
        gone.append(command.topic_id)
    world.commit()
    return world, gone


def test_a_deleted_topic_is_known_and_one_that_never_was_is_not() -> None:
    """A topic of the same name that exists now has another id."""
    world, gone = world_after(2)
    world.run(create_topic("gone"))
    world.commit()
    present = world.image.topic_by_name("gone")
    assert present is not None
    assert world.image.deleted_topics.ids() == frozenset(gone)
    assert present.topic_id not in world.image.deleted_topics.ids()
    assert b"\xff" * ID_BYTES not in world.image.deleted_topics.ids()


def test_the_oldest_block_goes_when_there_would_be_one_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest ids always stay: at least all but one block of the allowed number."""
    monkeypatch.setattr(deleted_topics, "MAX_BLOCKS", 3)
    kept = DeletedTopics()
    for number in range(5 * BLOCK_IDS):
        kept.add(an_id(number))
        newest = range(max(0, number + 1 - 2 * BLOCK_IDS), number + 1)
        assert kept.ids() >= {an_id(each) for each in newest}
        assert len(kept.ids()) <= 3 * BLOCK_IDS
    assert kept.numbers() == range(2, 5)
    assert kept.block(1) is None
    assert kept.block(2) == b"".join(an_id(number) for number in range(2 * BLOCK_IDS, 3 * BLOCK_IDS))


def test_a_reloaded_image_has_the_same_ids_over_blocks_that_come_and_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each deletion writes its block and removes the row of a dropped one: the store always equals the image."""
    monkeypatch.setattr(deleted_topics, "MAX_BLOCKS", 2)
    world, gone = world_after(2 * BLOCK_IDS + 3)
    image = MetadataImage()
    store, _ = open_image(tmp_path / "image")
    write(store, image, world.log)
    assert store.rows() == view(image) == view(world.image)
    store.close()
    store, loaded = open_image(tmp_path / "image")
    assert loaded.image.deleted_topics.ids() == frozenset(gone[BLOCK_IDS:])
    assert view(loaded.image) == view(world.image)
    store.close()


def test_rows_rebuild_the_ids() -> None:
    """A snapshot is the rows in key order; the image that applies them continues from there."""
    world, gone = world_after(BLOCK_IDS + 1)
    image = MetadataImage()
    for _, row in image_rows.all_rows(world.image):
        image_rows.add_row(image, row)
    assert image.deleted_topics.ids() == frozenset(gone)
    image.deleted_topics.add(an_id(7))
    assert image.deleted_topics.touched_numbers() == [1]
    assert an_id(7) in image.deleted_topics.ids()


@pytest.mark.parametrize(
    ("number", "data"),
    [(1, b""), (1, bytes(15)), (1, bytes((BLOCK_IDS + 1) * ID_BYTES)), (2, bytes(16)), (0, bytes(16))],
)
def test_damaged_or_misplaced_blocks_are_refused(number: int, data: bytes) -> None:
    """Empty, truncated, too long, or out of order: the image is rebuilt."""
    kept = DeletedTopics()
    kept.add_block(0, bytes(BLOCK_IDS * ID_BYTES))
    with pytest.raises(AssertionError):
        kept.add_block(number, data)


def test_a_block_after_one_that_is_not_full_is_refused() -> None:
    """Ids would be missing between the two."""
    kept = DeletedTopics()
    kept.add_block(4, bytes(ID_BYTES))
    with pytest.raises(AssertionError):
        kept.add_block(5, bytes(ID_BYTES))
