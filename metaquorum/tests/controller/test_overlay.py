# SPDX-License-Identifier: Apache-2.0
"""Properties of the controller core: decide changes nothing, the overlay equals a replay, and ends with the leadership."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, given, settings

from metaquorum.controller.appended import AppendedImage
from metaquorum.controller.commands import (
    AllocateProducerIds,
    Bootstrap,
    DeleteTopic,
)
from metaquorum.metadata import image_rows
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.records import FEATURE_NAME, ConfigRecord, ConfigResource, MetadataRecord
from metaquorum.tests.controller_steps import BROKERS, STEPS, TOPICS, command_for, prepared, step
from metaquorum.tests.controller_world import World, create_topic, view

# One step of a history: what, which broker or topic, a number, a switch.


def switches(image: MetadataImage) -> list[tuple[ConfigResource, str]]:
    """Return the resources that may have a switch to `ack`."""
    topics = [(ConfigResource.TOPIC, topic.topic_id.hex()) for topic in image.topics_by_id()]
    return [*topics, *((ConfigResource.BROKER, str(each)) for each in BROKERS), (ConfigResource.CLUSTER, "")]


def appended_view(appended: AppendedImage, shadow: MetadataImage) -> list[object]:
    """Return the state that decisions see, in the form of `image_view`."""
    return [
        appended.brokers(),
        [replace(topic) for topic in appended.topics()],
        [appended.topic_by_name(name) for name in TOPICS],
        [appended.topic_by_id(topic.topic_id) for topic in shadow.topics_by_id()],
        [appended.broker(broker_id) for broker_id in BROKERS],
        [appended.ack_switch(*place) for place in switches(shadow)],
        appended.counts,
        appended.next_producer_id,
        appended.feature_level(FEATURE_NAME),
        appended.topic_count,
        appended.broker_count,
    ]


def image_view(image: MetadataImage) -> list[object]:
    """Return the same of an image."""
    return [
        [image.brokers[broker_id] for broker_id in sorted(image.brokers)],
        [replace(topic) for topic in image.topics()],
        [image.topic_by_name(name) for name in TOPICS],
        [image.topic_by_id(topic.topic_id) for topic in image.topics_by_id()],
        [image.broker(broker_id) for broker_id in BROKERS],
        [image.ack_switch(*place) for place in switches(image)],
        image.counts,
        image.next_producer_id,
        image.features.get(FEATURE_NAME),
        len(image.topic_names),
        len(image.brokers),
    ]


def replayed(log: list[tuple[int, MetadataRecord]]) -> MetadataImage:
    """Return an image of a whole log."""
    image = MetadataImage()
    for offset, record in log:
        image.replay(record, offset)
    return image


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(STEPS)
def test_overlay_equals_a_replay_of_the_whole_log_and_holds_only_what_is_uncommitted(
    steps: list[tuple[str, int, int, bool]],
) -> None:
    """Law of the overlay, over random histories with commits and changes of leadership at any point."""
    world = prepared()
    for kind, which, number, switch in steps:
        step(world, kind, which, number, switch)
        shadow = replayed(world.log)
        assert appended_view(world.controller.image, shadow) == image_view(shadow)
        uncommitted = [entry for entry in world.log if entry[0] >= world.image.metadata_offset]
        if not uncommitted:
            assert world.controller.image.overlay_size == 0
    world.commit()
    assert world.controller.image.overlay_size == 0
    assert view(world.image) == view(replayed(world.log))


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(STEPS, STEPS)
def test_decide_changes_nothing(
    steps: list[tuple[str, int, int, bool]], asked: list[tuple[str, int, int, bool]]
) -> None:
    """Any command can be decided at any time without a trace: the same question gets the same answer."""
    world = prepared()
    for kind, which, number, switch in steps:
        step(world, kind, which, number, switch)
    shadow = replayed(world.log)
    commands = [command_for(world, *one) for one in asked if one[0] not in ("commit", "take_over", "wait")]
    deadline_ms = world.controller.deadline_ms()
    first = [world.decide(command) for command in commands]
    assert appended_view(world.controller.image, shadow) == image_view(shadow)
    assert world.controller.deadline_ms() == deadline_ms
    assert [world.decide(command) for command in reversed(commands)] == first[::-1]


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(STEPS)
def test_rows_of_an_image_rebuild_it_and_touched_rows_keep_a_copy_up_to_date(
    steps: list[tuple[str, int, int, bool]],
) -> None:
    """Laws of the rows: replayed in key order they are the image; touched keys are all that changes."""
    world = prepared()
    for kind, which, number, switch in steps:
        step(world, kind, which, number, switch)
    world.commit()
    image = MetadataImage()
    table: dict[bytes, image_rows.Row] = {}
    for offset, record in world.log:
        keys = image_rows.touched_keys(record, image)
        image.replay(record, offset)
        for key in keys:
            row = image_rows.row(image, key)
            if row is None:
                table.pop(key, None)
            else:
                table[key] = row
    assert dict(view(image)) == table
    assert [key for key, _ in view(image)] == sorted(table)
    rebuilt = MetadataImage()
    for _, row in sorted(table.items(), key=lambda item: item[0]):
        image_rows.add_row(rebuilt, row)
    assert view(rebuilt) == view(image)
    assert rebuilt.counts == image.counts


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(STEPS)
def test_only_usable_brokers_lead_once_work_is_done(steps: list[tuple[str, int, int, bool]]) -> None:
    """Invariant: after a sweep every leader is unfenced and in sync, and every partition that can have a leader has one."""
    world = prepared()
    for kind, which, number, switch in steps:
        step(world, kind, which, number, switch)
    world.run(Bootstrap())
    usable = {broker_id for broker_id, broker in world.image.brokers.items() if broker.can_lead}
    for topic in world.image.topics():
        for partition in topic.partitions:
            assert partition.isr
            if set(partition.isr) & usable:
                assert partition.leader_id in usable
            else:
                assert partition.leader_id is None


def test_loss_of_leadership_drops_what_is_not_committed() -> None:
    """The next leadership knows only what was committed."""
    world = World()
    world.start_broker(1)
    world.run(create_topic("kept"))
    world.append(create_topic("lost"))
    world.append(DeleteTopic(topic="kept"))
    world.append(AllocateProducerIds(broker_id=1, broker_epoch=world.epoch(1)))
    assert world.controller.image.topic_by_name("lost") is not None
    assert world.controller.image.topic_by_name("kept") is None
    assert world.controller.image.overlay_size > 0
    world.take_over()
    assert world.controller.image.topic_by_name("lost") is None
    assert world.controller.image.topic_by_name("kept") is not None
    assert world.controller.image.next_producer_id == 1
    assert world.controller.image.overlay_size == 0


def test_readers_see_committed_state_only() -> None:
    """The committed image does not move before the commit, and then moves at once."""
    world = World()
    world.start_broker(1)
    before = view(world.image)
    world.append(create_topic("t", partition_count=2))
    assert view(world.image) == before
    world.commit()
    assert world.image.topic_by_name("t") is not None


def test_configs_of_brokers_and_cluster_are_kept_in_both_images() -> None:
    """Configs that belong to no topic are set, replaced and removed by records, and have rows."""
    image = MetadataImage()
    facts = [
        (ConfigResource.CLUSTER, "", "x", "1"),
        (ConfigResource.BROKER, "7", "y", "2"),
        (ConfigResource.BROKER, "7", "x", "3"),
        (ConfigResource.BROKER, "7", "x", None),
        (ConfigResource.CLUSTER, "", "x", "4"),
        (ConfigResource.CLUSTER, "", "unknown", None),
        (ConfigResource.BROKER, "8", "unknown", None),
    ]
    appended = AppendedImage(image)
    keys: set[bytes] = set()
    for offset, (resource, resource_name, name, value) in enumerate(facts):
        record = ConfigRecord(resource=resource, resource_name=resource_name, name=name, value=value)
        keys.update(image_rows.touched_keys(record, image))
        image.replay(record, offset)
        appended.replay(record, offset)
        assert appended.configs_of(resource, resource_name) == image.configs_of(resource, resource_name)
    appended.forget_committed(len(facts))
    assert {key: dict(value) for key, value in image.other_configs().items()} == {
        (ConfigResource.CLUSTER, ""): {"x": "4"},
        (ConfigResource.BROKER, "7"): {"y": "2"},
    }
    rows = view(image)
    assert [row for key in sorted(keys) if (row := image_rows.row(image, key)) is not None] == [row for _, row in rows]
    image.replay(ConfigRecord(resource=ConfigResource.CLUSTER, resource_name="", name="x", value=None), 99)
    assert (ConfigResource.CLUSTER, "") not in image.other_configs()
    assert appended.overlay_size == 0
