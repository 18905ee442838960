# SPDX-License-Identifier: Apache-2.0
"""Staging topics over random histories: after every command, committed or not, each one still fits its topic."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from metaquorum.controller.commands import (
    AlterConfigs,
    AlterPartition,
    Command,
    CreatePartitions,
    DeleteTopic,
    ElectPreferredLeaders,
    FenceBroker,
    IsrProposal,
    PartitionsAltered,
    Reassignment,
    ReassignPartitions,
    Refusal,
    ResourceChanges,
    SweepPartitions,
)
from metaquorum.controller.settings import ControllerSettings
from metaquorum.controller.staging import FIXED_CONFIGS, FOLLOWED_CONFIGS
from metaquorum.metadata.records import ConfigResource, PartitionChangeRecord
from metaquorum.metadata.state import PartitionImage, TopicImage
from metaquorum.metadata.topic_names import staged_topic_id, staging_topic
from metaquorum.testing.controller_mutants import STAGING_MUTANTS
from metaquorum.testing.mutants import Mutant, apply
from metaquorum.tests.controller_world import World, create_topic, incarnation

BROKERS = (0, 1, 2, 3, 4)
TOPICS = ("a", "b", "c")
STEPS = 150
SETTINGS = ControllerSettings(max_request_partitions=12, max_partitions=60, max_broker_replicas=20)


class Model:
    """A controller, administrators and brokers; `counts` has what happened."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.world = World(settings=SETTINGS)
        for broker_id in BROKERS:
            self.world.start_broker(broker_id)
        self.ids = 1_000
        self.counts: Counter[str] = Counter()
        self.trace: list[str] = []

    def step(self) -> None:
        """Let one thing happen."""
        kinds = (
            (self.create, 3),
            (self.stage, 4),
            (self.grow, 3),
            (self.delete, 1),
            (self.reassign, 6),
            (self.propose, 14),
            (self.alter, 3),
            (self.fence, 2),
            (self.unfence, 5),
            (self.rebalance, 1),
            (self.commit, 3),
            (self.take_over, 1),
        )
        kind = self.random.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])[0]
        self.trace.append(kind.__name__)
        kind()

    def do(self, command: Command) -> bool:
        """Append a command, perhaps with its commit. Return whether it was accepted and wrote something."""
        world = self.world
        decision = world.run(command) if self.random.random() < 0.5 else world.append(command)
        done = not isinstance(decision.response, Refusal) and bool(decision.records)
        self.counts[f"{type(command).__name__} {'done' if done else 'not done'}"] += 1
        return done

    def some_topic(self) -> str:
        """Return the name of a topic or of a staging topic that may exist."""
        names = list(TOPICS)
        names += [topic.topic for topic in self.topics() if staged_topic_id(topic.topic) is not None][:1]
        return self.random.choice(names)

    def topics(self) -> list[TopicImage]:
        """Return all topics, uncommitted ones included."""
        return list(self.world.controller.image.topics())

    def fresh_id(self) -> bytes:
        """Return an id that no topic had before."""
        self.ids += 1
        return incarnation(self.ids)

    def create(self) -> None:
        """Create a topic."""
        self.do(
            create_topic(
                self.random.choice(TOPICS),
                topic_id=self.fresh_id(),
                partition_count=self.random.randint(1, 4),
                replication_factor=self.random.randint(1, 3),
                placement_seed=self.random.getrandbits(64),
            )
        )

    def stage(self) -> None:
        """A broker creates a staging topic; sometimes its metadata is old."""
        topic = self.world.controller.image.topic_by_name(self.random.choice(TOPICS))
        named = self.fresh_id() if topic is None else topic.topic_id
        count = 1 if topic is None else len(topic.partitions) - (self.random.random() < 0.1)
        command = create_topic(staging_topic(named), topic_id=self.fresh_id(), partition_count=count)
        self.counts["staged"] += self.do(command)

    def grow(self) -> None:
        """Grow a topic."""
        name = self.some_topic()
        topic = self.world.controller.image.topic_by_name(name)
        count = self.random.randint(1, 3) + (0 if topic is None else len(topic.partitions))
        self.do(CreatePartitions(topic=name, partition_count=count, placement_seed=self.random.getrandbits(64)))

    def delete(self) -> None:
        """Delete a topic."""
        self.do(DeleteTopic(topic=self.some_topic()))

    def reassign(self) -> None:
        """Move some partitions, or cancel that."""
        places = {(self.some_topic(), self.random.randint(0, 3)) for _ in range(self.random.randint(1, 4))}
        command = ReassignPartitions(
            reassignments=tuple(
                Reassignment(
                    topic=topic,
                    partition=partition,
                    replicas=None
                    if self.random.random() < 0.3
                    else tuple(self.random.sample(BROKERS, self.random.randint(1, 3))),
                )
                for topic, partition in sorted(places)
            )
        )
        decision = self.world.decide(command)
        assert isinstance(decision.response, PartitionsAltered)
        for each, result in zip(command.reassignments, decision.response.results, strict=True):
            if isinstance(result, Refusal):
                self.counts["along refused"] += "staging topic cannot go along" in result.message
            else:
                assert staged_topic_id(each.topic) is None
                self.counts["cancelled" if each.replicas is None else "reassigned"] += 1
        moved = [self.world.controller.image.topic_by_id(each.topic_id) for each in changes(decision.records)]
        self.counts["moved along"] += sum(
            each is not None and staged_topic_id(each.topic) is not None for each in moved
        )
        self.do(command)

    def propose(self) -> None:
        """The leader of a partition takes some live replicas into the in-sync ones."""
        topics = self.topics()
        if not topics:
            return
        topic = self.random.choice(topics)
        moving = [each for each in topic.partitions if is_moving(each)]
        partition = self.random.choice(moving or list(topic.partitions))
        leader_id = partition.leader_id
        if leader_id is None:
            return
        image = self.world.controller.image
        fit = {broker.broker_id for broker in image.brokers() if broker.can_lead}
        share = self.random.choice((0.5, 1.0))
        isr = tuple(
            (node_id, None)
            for node_id in partition.replicas
            if node_id == leader_id or (node_id in fit and self.random.random() < share)
        )
        proposal = IsrProposal(
            topic_id=topic.topic_id,
            partition=partition.partition,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            isr=isr,
        )
        self.do(AlterPartition(broker_id=leader_id, broker_epoch=self.world.epoch(leader_id), proposals=(proposal,)))

    def alter(self) -> None:
        """Change configs of a topic."""
        change = self.random.choice(
            [
                ("min.insync.replicas", "2"),
                ("min.insync.replicas", "3"),
                ("min.insync.replicas", None),
                ("flush.policy", "none"),
                ("flush.policy", "ack"),
                ("flush.policy", None),
                ("retention.ms", "7"),
            ]
        )
        resources = ResourceChanges(resource=ConfigResource.TOPIC, name=self.some_topic(), changes=(change,))
        self.do(AlterConfigs(resources=(resources,)))

    def fence(self) -> None:
        """Fence a broker; its partitions get other leaders."""
        broker_id = self.random.choice(BROKERS)
        self.world.run(FenceBroker(broker_id=broker_id, broker_epoch=self.world.epoch(broker_id)))

    def unfence(self) -> None:
        """Let a broker send a heartbeat."""
        self.world.beat(self.random.choice(BROKERS))

    def rebalance(self) -> None:
        """First replicas lead again."""
        self.world.run(ElectPreferredLeaders())

    def commit(self) -> None:
        """Commit what is appended."""
        self.world.commit()

    def take_over(self) -> None:
        """Let another controller take over; what is not committed is lost."""
        self.world.take_over()
        self.world.run(SweepPartitions())

    def check(self) -> None:
        """Check the law of staging topics, in the appended and in the committed image."""
        for image in (self.world.controller.image, self.world.image):
            for staging in image.topics():
                topic_id = staged_topic_id(staging.topic)
                if topic_id is not None:
                    topic = image.topic_by_id(topic_id)
                    text = f"{staging.topic} after {self.trace}"
                    assert topic is not None, text
                    assert fits(staging, topic), f"{staging}\n{topic}\n{text}"


def fits(staging: TopicImage, topic: TopicImage) -> bool:
    """Return whether a staging topic is what its topic needs."""
    pairs = list(zip(staging.partitions, topic.partitions, strict=False))
    return (
        len(staging.partitions) == len(topic.partitions)
        and all(staging.configs.get(name) == topic.configs.get(name) for name in FOLLOWED_CONFIGS)
        and all(staging.configs.get(name) == value for name, value in FIXED_CONFIGS.items())
        and all(own.target_replicas == of_topic.target_replicas for own, of_topic in pairs)
        and all(
            own.replicas == of_topic.replicas for own, of_topic in pairs if not (is_moving(own) or is_moving(of_topic))
        )
    )


def is_moving(partition: PartitionImage) -> bool:
    """Return whether a reassignment of a partition is under way."""
    return bool(partition.adding or partition.removing)


def changes(records: tuple[object, ...]) -> list[PartitionChangeRecord]:
    """Return the changes of partitions among some records."""
    return [record for record in records if isinstance(record, PartitionChangeRecord)]


def walk(seeds: range) -> Counter[str]:
    """Take the steps of each seed, check after each, and return the counts."""
    counts: Counter[str] = Counter()
    for seed in seeds:
        model = Model(seed)
        for _ in range(STEPS):
            model.step()
            model.check()
        counts.update(model.counts)
    return counts


def test_staging_topics_fit_their_topics() -> None:
    """Over many histories, which reach the cases that the law is about."""
    counts = walk(range(120))
    assert counts["staged"] > 200
    assert counts["CreatePartitions done"] > 200
    assert counts["DeleteTopic done"] > 100
    assert counts["AlterConfigs done"] > 200
    assert counts["moved along"] > 400
    assert counts["cancelled"] > 50
    assert counts["reassigned"] > 800
    assert counts["along refused"] > 2


@pytest.mark.parametrize("mutant", STAGING_MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_is_found(mutant: Mutant) -> None:
    """The law can fail: each known mistake breaks it."""
    with apply(mutant), pytest.raises(AssertionError):
        walk(range(60))
