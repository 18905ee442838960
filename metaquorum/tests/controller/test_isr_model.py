# SPDX-License-Identifier: Apache-2.0
"""Random sequences of commands over one replicated partition, with a model of the logs behind it.

The model knows what each replica holds and what is committed. It checks two invariants after every command, with their names in the
TLA+ specification of KIP-966: ValidControllerIsrAndElr (the lists are possible) and LeaderCandidateCompleteness (every replica that
may be elected has all committed records).
"""

from __future__ import annotations

import random

import pytest
from lograft.wire.codes import ErrorCode

from metaquorum.controller.commands import (
    AlterConfigs,
    AlterPartition,
    FenceBroker,
    IsrProposal,
    LeadershipResigned,
    LedPartition,
    PartitionsAltered,
    Reassignment,
    ReassignPartitions,
    Refusal,
    RegisterBroker,
    ResignLeadership,
    ResourceChanges,
    SweepPartitions,
)
from metaquorum.metadata.isr import changed_isr
from metaquorum.metadata.records import ConfigResource
from metaquorum.metadata.state import PartitionImage
from metaquorum.tests.controller_world import World, register, topic_id

REPLICAS = (0, 1, 2, 3, 4)
STEPS = 120


class Model:
    """A controller, and logs as counts of records: each log is a prefix of one history, or ends in unacknowledged records.

    Args:
        seed: for what happens.
        policy: the topic's flush policy; under "none" an unclean stop loses what was not flushed.
    """

    def __init__(self, seed: int, policy: str) -> None:
        self.random = random.Random(seed)
        # Of their own, so that they take no turn from the others.
        self.time_random = random.Random(seed)
        self.resign_random = random.Random(seed)
        self.policy = policy
        self.world = World()
        for broker_id in REPLICAS:
            self.world.start_broker(broker_id)
        self.world.write_topic("t", REPLICAS[:4], configs={"min.insync.replicas": "2", "flush.policy": policy})
        # The length of each log, and of its flushed part.
        self.held = dict.fromkeys(REPLICAS, 0)
        self.flushed = dict.fromkeys(REPLICAS, 0)
        self.committed = 0
        self.processes = 1_000
        self.trace: list[str] = []
        self.leader_id: int | None = 0
        self.commands = 0
        self.moves = 0
        self.returns = 0
        self.resigned = 0
        self.resigned_to_elr = 0

    @property
    def partition(self) -> PartitionImage:
        """The committed partition."""
        return self.world.partition("t")

    @property
    def min_isr(self) -> int:
        """The number of in-sync replicas that a commit needs."""
        topic = self.world.image.topic_by_name("t")
        assert topic is not None
        partition = topic.partitions[0]
        original = set(partition.replicas) - set(partition.adding)
        return min(int(topic.configs.get("min.insync.replicas", "1")), len(original))

    def step(self) -> None:
        """Let one thing happen."""
        kinds = (
            (self.append, 4),
            (self.replicate, 8),
            (self.flush, 2),
            (self.propose, 6),
            (self.fence, 3),
            (self.unfence, 5),
            (self.restart, 2),
            (self.reassign, 3),
            (self.set_min_isr, 1),
            (self.take_over, 1),
        )
        kind = self.random.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])[0]
        self.trace.append(kind.__name__)
        kind()
        if self.time_random.random() < 0.3:
            self.let_time_pass()
        if self.resign_random.random() < 0.1:
            # Followers of the old leader cut their logs before the next election.
            self.follow_leader()
            self.resign()
        self.follow_leader()
        self.commit()

    def follow_leader(self) -> None:
        """Cut the logs of the other replicas to the history, which is now the log of the new leader."""
        leader_id = self.partition.leader_id
        if leader_id is not None and leader_id != self.leader_id:
            for node_id in REPLICAS:
                self.held[node_id] = min(self.held[node_id], self.held[leader_id])
                self.flushed[node_id] = min(self.flushed[node_id], self.held[node_id])
        self.leader_id = leader_id
        for node_id in REPLICAS:
            if node_id not in self.partition.replicas:
                # A removed replica is deleted; a later one on that broker starts empty.
                self.held[node_id] = self.flushed[node_id] = 0

    def commit(self) -> None:
        """Move the high watermark to what all in-sync replicas have, if there are enough of them."""
        partition = self.partition
        if partition.leader_id is not None and len(partition.isr) >= self.min_isr:
            counted = self.flushed if self.policy == "ack" else self.held
            self.committed = max(self.committed, min(counted[node_id] for node_id in partition.isr))

    def append(self) -> None:
        """The leader appends."""
        if self.partition.leader_id is not None:
            self.held[self.partition.leader_id] += 1

    def replicate(self) -> None:
        """Let a live follower fetch some of what it lacks."""
        leader_id, node_id = self.partition.leader_id, self.random.choice(REPLICAS)
        is_replica = node_id in self.partition.replicas
        if leader_id is not None and is_replica and self.world.image.brokers[node_id].can_lead:
            missing = self.held[leader_id] - self.held[node_id]
            self.held[node_id] += self.random.randint(0, max(0, missing))

    def flush(self) -> None:
        """A replica flushes."""
        node_id = self.random.choice(REPLICAS)
        self.flushed[node_id] = self.held[node_id]

    def propose(self) -> None:
        """The leader proposes those that have caught up, or fewer; sometimes with an old epoch."""
        partition = self.partition
        if partition.leader_id is None:
            return
        counted = self.flushed if self.policy == "ack" else self.held
        # The leader's own flush may lag behind under `ack`; the leader knows what is committed.
        fit = [
            node_id
            for node_id in REPLICAS
            if node_id == partition.leader_id or (counted[node_id] >= self.committed and self.random.random() < 0.7)
        ]
        late = self.random.random() < 0.2
        command = AlterPartition(
            broker_id=partition.leader_id,
            broker_epoch=self.world.epoch(partition.leader_id),
            proposals=(
                IsrProposal(
                    topic_id=topic_id("t"),
                    partition=0,
                    leader_epoch=partition.leader_epoch,
                    partition_epoch=partition.partition_epoch - late,
                    isr=tuple((node_id, self.world.epoch(node_id)) for node_id in fit),
                ),
            ),
        )
        response = self.world.run(command).response
        assert isinstance(response, PartitionsAltered)
        (result,) = response.results
        if late:
            assert isinstance(result, Refusal)
            assert result.code is ErrorCode.FENCED_EPOCH
        if not isinstance(result, Refusal):
            assert result == self.partition
        self.commands += 1

    def resign(self) -> None:
        """Let the leader resign: an in-sync replica leads and the old leader stays in sync, or an eligible one leads, or none can."""
        before = self.partition
        if before.leader_id is None:
            return
        led = LedPartition(topic_id=topic_id("t"), partition=0, leader_epoch=before.leader_epoch, allow_eligible=True)
        command = ResignLeadership(
            broker_id=before.leader_id, broker_epoch=self.world.epoch(before.leader_id), partitions=(led,)
        )
        self.trace.append("resign")
        response = self.world.run(command).response
        assert isinstance(response, LeadershipResigned)
        (result,) = response.results
        after = self.partition
        if isinstance(result, Refusal):
            assert (result.code, before.isr) == (ErrorCode.LEADER_NOT_AVAILABLE, (before.leader_id,))
            assert not any(self.world.image.brokers[node_id].can_lead for node_id in before.elr)
            assert after == before
            return
        assert result == after
        assert after.leader_id != before.leader_id
        if after.leader_id in before.elr:
            assert before.isr == (before.leader_id,)
            assert after.isr == (after.leader_id,)
            assert {*after.isr, *after.elr} == {*before.isr, *before.elr}
            self.resigned_to_elr += 1
        else:
            assert (after.isr, after.elr) == (before.isr, before.elr)
        assert after.last_known_elr == before.last_known_elr
        self.resigned += 1

    def fence(self) -> None:
        """Fence a broker, as after a lost session."""
        node_id = self.random.choice(REPLICAS)
        self.world.run(FenceBroker(broker_id=node_id, broker_epoch=self.world.epoch(node_id)))

    def unfence(self) -> None:
        """Let a fenced broker send a heartbeat."""
        self.world.beat(self.random.choice(REPLICAS))

    def restart(self) -> None:
        """A broker stops, clean or not, and another process of it registers."""
        node_id = self.random.choice(REPLICAS)
        epoch = self.world.epoch(node_id)
        self.world.run(FenceBroker(broker_id=node_id, broker_epoch=epoch))
        # Whatever the stop makes of the leader, makes it before the log loses something.
        self.follow_leader()
        clean = self.random.random() < 0.4
        if clean:
            self.flushed[node_id] = self.held[node_id]
        self.processes += 1
        command: RegisterBroker = register(node_id, process=self.processes, clean_stop_epoch=epoch if clean else None)
        others = {*self.partition.isr, *self.partition.elr} - {node_id}
        self.world.run(command)
        self.held[node_id] = self.flushed[node_id]
        partition = self.partition
        if not clean and self.policy != "ack" and node_id in {*partition.isr, *partition.elr}:
            # The last replica stays although it may have lost records, and these are lost, as the policy allows.
            assert not others, f"{node_id} stays beside {others}"
            self.committed = min(self.committed, self.held[node_id])

    def reassign(self) -> None:
        """An operator moves the partition to other brokers, or cancels that."""
        target = tuple(self.random.sample(REPLICAS, self.random.randint(1, len(REPLICAS))))
        replicas = None if self.random.random() < 0.3 else target
        command = ReassignPartitions(reassignments=(Reassignment(topic="t", partition=0, replicas=replicas),))
        before = self.partition
        self.world.run(command)
        self.moves += self.partition.replicas != before.replicas

    def set_min_isr(self) -> None:
        """An operator changes the topic's `min.insync.replicas`."""
        value = self.random.choice((None, "1", "2", "3", "9"))
        changes = ResourceChanges(resource=ConfigResource.TOPIC, name="t", changes=(("min.insync.replicas", value),))
        self.world.run(AlterConfigs(resources=(changes,)))

    def let_time_pass(self) -> None:
        """Let all intervals end: the first replica leads again if it can. No config allows an unclean leader."""
        before = self.partition
        due_ms = self.world.controller.deadline_ms() + 600_000
        for work in self.world.controller.due(due_ms):
            self.world.run(work)
        after = self.partition
        self.returns += before.leader_id != after.leader_id
        assert after.isr == before.isr
        assert after.leader_id in {before.leader_id, before.replicas[0]}
        assert (after.leader_id is None) == (before.leader_id is None)

    def take_over(self) -> None:
        """Let another controller take over."""
        self.world.take_over()
        self.world.run(SweepPartitions())

    def check(self) -> None:
        """Check both invariants.

        Source: Vanlightly, kafka-tlaplus, KIP-966: ValidControllerIsrAndElr, LeaderCandidateCompleteness.
        """
        partition, text = self.partition, f"{self.partition} after {self.trace}"
        isr, elr, known = set(partition.isr), set(partition.elr), set(partition.last_known_elr)
        assert isr, text
        assert isr | elr | known <= set(partition.replicas), text
        assert set(partition.adding) | set(partition.removing) <= set(partition.replicas), text
        assert not set(partition.adding) & set(partition.removing), text
        assert not isr & elr, text
        assert not known & (isr | elr), text
        assert not (elr or known) or len(isr) < self.min_isr, text
        if partition.leader_id is not None:
            assert partition.leader_id in isr, text
            assert all(self.world.image.brokers[node_id].can_lead for node_id in isr), text
        for node_id in isr | elr:
            assert self.held[node_id] >= self.committed, f"{node_id} lacks {self.committed}: {self.held} {text}"


@pytest.mark.parametrize("policy", ["ack", "none"])
def test_lists_are_valid_and_candidates_complete(policy: str) -> None:
    """Both invariants hold after every command of many random sequences, with stops of every kind."""
    commands = elected_from_elr = moves = returns = resigned = resigned_to_elr = 0
    for seed in range(150):
        model = Model(seed, policy)
        for _ in range(STEPS):
            before = model.partition
            model.step()
            model.check()
            leader_id = model.partition.leader_id
            elected_from_elr += leader_id is not None and leader_id in before.elr
        commands += model.commands
        moves += model.moves
        returns += model.returns
        resigned += model.resigned
        resigned_to_elr += model.resigned_to_elr
    # The sequences reach the cases that the test is about.
    assert commands > 1_000
    assert elected_from_elr > 20
    assert moves > 100
    assert returns > 10
    assert resigned > 100
    assert resigned_to_elr > 20


def test_model_finds_an_eligible_replica_that_is_kept_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """The invariants can fail: replicas that stay eligible although enough are in sync are found."""

    def careless(
        partition: PartitionImage, isr: tuple[int, ...], *, min_isr: int, lost: tuple[int, ...] = (), **others: object
    ) -> object:
        return changed_isr(partition, isr, min_isr=max(min_isr, len(isr) + 1), lost=lost, **others)

    monkeypatch.setattr("metaquorum.controller.alter_partition.changed_isr", careless)
    monkeypatch.setattr("metaquorum.controller.elections.changed_isr", careless)
    with pytest.raises(AssertionError):
        test_lists_are_valid_and_candidates_complete("ack")


def test_model_finds_a_lossy_replica_that_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The invariants can fail: a replica that lost records and stays eligible is found."""

    def trusting(
        partition: PartitionImage, isr: tuple[int, ...], *, min_isr: int, lost: tuple[int, ...] = (), **others: object
    ) -> object:
        del lost
        return changed_isr(partition, isr, min_isr=min_isr, **others)

    monkeypatch.setattr("metaquorum.controller.elections.changed_isr", trusting)
    with pytest.raises(AssertionError, match=r"lacks|stays beside"):
        test_lists_are_valid_and_candidates_complete("none")
