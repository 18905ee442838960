# SPDX-License-Identifier: Apache-2.0
"""A slice works a result out once for equal partitions; it equals the result for each of them alone."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metaquorum.controller import elections
from metaquorum.controller.commands import Command, ElectPreferredLeaders, SweepPartitions
from metaquorum.controller.configs import settings_of
from metaquorum.controller.elections import partition_change, preferred_change, rules_of
from metaquorum.metadata.records import (
    BrokerChangeRecord,
    ConfigRecord,
    ConfigResource,
    MetadataRecord,
    PartitionRecord,
    TopicRecord,
)
from metaquorum.metadata.topic_configs import FlushPolicy
from metaquorum.tests.controller_world import World, topic_id

BROKERS = (1, 2, 3, 4)
CONFIGS = ("min.insync.replicas=2", "unclean.leader.election.enable=true", "flush.policy=none")


@st.composite
def partitions(draw: st.DrawFn) -> PartitionRecord:
    """A possible partition with number 0, without a topic; there are few kinds, so that some are equal."""
    replicas = draw(st.sampled_from(((1,), (1, 2), (2, 1), (1, 2, 3), (3, 1, 4))))
    isr = replicas[: draw(st.integers(1, len(replicas)))]
    rest = tuple(each for each in replicas if each not in isr)
    return PartitionRecord(
        topic_id=b"",
        partition=0,
        replicas=replicas,
        isr=isr,
        leader_id=draw(st.sampled_from((None, *isr))),
        leader_epoch=draw(st.integers(0, 3)),
        partition_epoch=draw(st.integers(0, 3)),
        elr=rest[: draw(st.integers(0, len(rest)))],
        last_known_elr=rest[-1:] if draw(st.booleans()) else (),
        adding=rest[-1:] if draw(st.booleans()) else (),
    )


TOPICS = st.lists(st.tuples(st.sets(st.sampled_from(CONFIGS)), st.lists(partitions(), max_size=40)), max_size=4)
STATES = st.tuples(*(st.sampled_from(("fit", "fenced", "unclean", "leaving")) for _ in BROKERS))


def filled(topics: list[tuple[set[str], list[PartitionRecord]]], states: tuple[str, ...]) -> World:
    """A world with these topics and brokers."""
    world = World()
    for broker_id, state in zip(BROKERS, states, strict=True):
        world.start_broker(broker_id)
        if state != "fit":
            fenced = state in ("fenced", "unclean")
            world.write(
                BrokerChangeRecord(
                    broker_id=broker_id,
                    broker_epoch=world.epoch(broker_id),
                    fenced=fenced,
                    unclean=state == "unclean",
                    in_controlled_shutdown=state == "leaving",
                )
            )
    for number, (configs, members) in enumerate(topics):
        name = f"t{number}"
        world.write(
            TopicRecord(topic=name, topic_id=topic_id(name)),
            *(
                ConfigRecord(
                    resource=ConfigResource.TOPIC,
                    resource_name=topic_id(name).hex(),
                    name=config.partition("=")[0],
                    value=config.partition("=")[2],
                )
                for config in sorted(configs)
            ),
            *(
                PartitionRecord(
                    topic_id=topic_id(name),
                    partition=partition,
                    replicas=each.replicas,
                    isr=each.isr,
                    leader_id=each.leader_id,
                    leader_epoch=each.leader_epoch,
                    partition_epoch=each.partition_epoch,
                    elr=each.elr,
                    last_known_elr=each.last_known_elr,
                    adding=each.adding,
                )
                for partition, each in enumerate(members)
            ),
        )
    return world


def decided(world: World, command: Command | None) -> list[MetadataRecord]:
    """Return all that a work decides about the image, slice by slice, without the changes of brokers."""
    found: list[MetadataRecord] = []
    while command is not None:
        decision = world.decide(command)
        found.extend(record for record in decision.records if not isinstance(record, BrokerChangeRecord))
        command = decision.then
    return found


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(TOPICS, STATES, st.sampled_from((3, 500)))
def test_sweep_decides_for_each_partition_what_it_needs(
    topics: list[tuple[set[str], list[PartitionRecord]]], states: tuple[str, ...], most_records: int
) -> None:
    """Property, over configs of topics, brokers in every state, and slices that cut topics."""
    world = filled(topics, states)
    world.limit(max_sweep_records=most_records)
    image = world.controller.image
    fit = {broker.broker_id for broker in image.brokers() if broker.can_lead}
    unclean = sorted((each for each in image.brokers() if each.unclean), key=lambda broker: broker.broker_epoch)
    needed: list[MetadataRecord] = []
    preferred: list[MetadataRecord] = []
    for topic in image.topics():
        lossy = [
            elections.Lossy(broker.broker_id)
            for broker in unclean
            if settings_of(image, topic.configs, broker.broker_id).flush_policy is not FlushPolicy.ACK
        ]
        for partition in topic.partitions:
            change = partition_change(topic.topic_id, partition, fit.__contains__, lossy, rules_of(image, topic))
            needed += [] if change is None else [change]
            back = preferred_change(topic.topic_id, partition, fit.__contains__)
            preferred += [] if back is None else [back]
    assert decided(world, SweepPartitions()) == needed
    assert decided(world, ElectPreferredLeaders()) == preferred


def test_equal_partitions_are_judged_once_in_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds for any number of partitions and topics; a topic with another config is judged separately."""
    world = World()
    for broker_id in (1, 2):
        world.start_broker(broker_id)
    for number in range(3):
        world.write_topic(f"t{number}", (1, 2), partition_count=150)
    world.write_topic("t3", (1, 2), partition_count=5, configs={"min.insync.replicas": "2"})
    world.write(BrokerChangeRecord(broker_id=1, broker_epoch=world.epoch(1), fenced=True))
    judged: list[int] = []

    def counted(*arguments: object) -> object:
        judged.append(1)
        return partition_change(*arguments)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(elections, "partition_change", counted)
    assert len(world.decide(SweepPartitions()).records) == 455
    assert len(judged) == 2
