# SPDX-License-Identifier: Apache-2.0
"""Reassignment: the replicas of a partition move to other brokers while clients use the partition.

Owns the start, completion and cancellation of reassignments, and their list. While one is under way, the partition has the replicas
of both sets; `adding` and `removing` name the differences.
Laws: a reassignment completes only when all new replicas are in sync, enough replicas are in sync without the removed ones, and one of
them can lead. So no committed record is only on a removed replica. The leader epoch rises at the end, so that no replica follows a
leader from before. A partition of a staging topic gets the target of the topic's partition in the same decision, or neither gets it;
each completes by itself (`staging.py`).

The limit of a broker counts what earlier partitions of the same request add to it and remove from it. The list scans an image in
slices: few of a million partitions are being moved, so there is no index of them. A page shows the image at the time of its request;
topics may be created or deleted between two pages.
Source: KIP-455; `docs/controller.md` section "Reassignment".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass

from lograft.wire.codes import ErrorCode

from metaquorum.controller.appended import AppendedImage
from metaquorum.controller.commands import (
    Decision,
    PartitionsAltered,
    Reassignment,
    ReassignPartitions,
    Refusal,
    refuse,
)
from metaquorum.controller.elections import elect
from metaquorum.controller.settings import ControllerSettings
from metaquorum.controller.staging import change_problem, staging_of
from metaquorum.metadata.awaited import awaited_brokers
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.isr import changed_isr, min_insync_replicas
from metaquorum.metadata.records import LeaderChange, MetadataRecord, PartitionChangeRecord
from metaquorum.metadata.state import PartitionImage, TopicImage
from metaquorum.metadata.topic_configs import MAX_REPLICATION_FACTOR

CanLead = Callable[[int], bool]


def reassign(image: AppendedImage, settings: ControllerSettings, command: ReassignPartitions) -> Decision:
    """Decide about reassignments, each separately."""
    if not 1 <= len(command.reassignments) <= settings.max_reassigned_partitions:
        return refuse(
            ErrorCode.INVALID_REQUEST,
            f"a request has 1 to {settings.max_reassigned_partitions} reassignments, this one has {len(command.reassignments)}",
        )
    places = {(each.topic, each.partition) for each in command.reassignments}
    if len(places) < len(command.reassignments):
        return refuse(ErrorCode.INVALID_REQUEST, "a partition is named twice")
    records: list[MetadataRecord] = []
    # Apart, so that changes of one topic stay neighbours.
    staging_records: list[MetadataRecord] = []
    results: list[PartitionImage | Refusal] = []
    earlier: list[PartitionImage | None] = []
    cluster = _Cluster(
        image,
        settings.max_broker_replicas,
        {broker.broker_id for broker in image.brokers() if broker.can_lead},
        Counter(image.counts.replicas),
    )
    for each in command.reassignments:
        topic = _topic(image, each)
        if isinstance(topic, Refusal):
            results.append(topic)
            earlier.append(None)
            continue
        before = topic.partitions[each.partition]
        earlier.append(before)
        after, along = _one(cluster, topic, before, each.replicas)
        results.append(after)
        if isinstance(after, PartitionImage) and after != before:
            records.append(record_of(topic.topic_id, before, after))
        if along is not None:
            staging_records.append(along)
    return Decision(
        response=PartitionsAltered(results=tuple(results), before=tuple(earlier)),
        records=() if command.validate_only else (*records, *staging_records),
    )


@dataclass(frozen=True, slots=True)
class _Cluster:
    """What decides about targets. `replicas` counts those of each broker after the earlier reassignments of the request."""

    image: AppendedImage
    max_broker_replicas: int
    fit: Set[int]
    replicas: Counter[int]

    def count(self, before: PartitionImage, after: PartitionImage) -> None:
        """Count the replicas of a partition that changes."""
        self.replicas.update(after.replicas)
        self.replicas.subtract(before.replicas)


def record_of(topic_id: bytes, before: PartitionImage, after: PartitionImage) -> PartitionChangeRecord:
    """Return the record that changes a partition from `before` to `after`."""
    return PartitionChangeRecord(
        topic_id=topic_id,
        partition=before.partition,
        leader=LeaderChange(leader_id=after.leader_id) if after.leader_epoch != before.leader_epoch else None,
        isr=after.isr if after.isr != before.isr else None,
        replicas=after.replicas if after.replicas != before.replicas else None,
        elr=after.elr if after.elr != before.elr else None,
        last_known_elr=after.last_known_elr if after.last_known_elr != before.last_known_elr else None,
        adding=after.adding if after.adding != before.adding else None,
        removing=after.removing if after.removing != before.removing else None,
        awaited=after.awaited if after.awaited != before.awaited else None,
    )


def _topic(image: AppendedImage, wanted: Reassignment) -> TopicImage | Refusal:
    """Return the topic, if it has the partition, and if its partitions are reassigned by themselves."""
    topic = image.topic_by_name(wanted.topic)
    if topic is None:
        return Refusal(code=ErrorCode.UNKNOWN_TOPIC, message=f"there is no topic {wanted.topic[:250]!r}")
    if not 0 <= wanted.partition < len(topic.partitions):
        return Refusal(
            code=ErrorCode.UNKNOWN_PARTITION, message=f"topic {topic.topic} has no partition {wanted.partition}"
        )
    problem = change_problem(image, topic.topic)
    return topic if problem is None else Refusal(code=ErrorCode.INVALID_REQUEST, message=problem)


def _one(
    cluster: _Cluster, topic: TopicImage, partition: PartitionImage, target: tuple[int, ...] | None
) -> tuple[PartitionImage | Refusal, MetadataRecord | None]:
    """Decide about one reassignment, and count it; `target` None cancels. The record is that of the staging topic's partition."""
    if target is None:
        after = _cancel(topic, partition, cluster.fit.__contains__)
    else:
        after = _moved(cluster, topic, partition, target)
    if isinstance(after, Refusal):
        return after, None
    cluster.count(partition, after)
    staging = staging_of(cluster.image, topic)
    if staging is None:
        return after, None
    staged = staging.partitions[partition.partition]
    # A cancellation, too, is a target: the replicas to which the topic's partition returns. The two need not be equally far.
    along = _moved(cluster, staging, staged, after.target_replicas)
    if isinstance(along, Refusal):
        cluster.count(after, partition)
        return Refusal(code=along.code, message=f"its staging topic cannot go along: {along.message}"), None
    cluster.count(staged, along)
    return after, None if along == staged else record_of(staging.topic_id, staged, along)


def _moved(
    cluster: _Cluster, topic: TopicImage, partition: PartitionImage, target: tuple[int, ...]
) -> PartitionImage | Refusal:
    """Return the partition on its way to these replicas, or there if nothing has to be copied; unchanged if it is already."""
    original = settled_replicas(partition)
    refusal = _target_problem(cluster, partition, target)
    if refusal is not None:
        return refusal
    begun = partition._replace(
        replicas=(*target, *(node_id for node_id in original if node_id not in target)),
        adding=tuple(node_id for node_id in target if node_id not in original),
        removing=tuple(node_id for node_id in original if node_id not in target),
    )
    dropped = set(partition.replicas) - set(begun.replicas)
    if dropped:
        # Replicas that an earlier reassignment was adding are no longer wanted.
        left = _without(topic, begun, begun.replicas, cluster.fit.__contains__)
        if isinstance(left, Refusal):
            return left
        begun = left
    done = completed(topic, begun, cluster.fit.__contains__)
    if (done.replicas, done.adding, done.removing) == (partition.replicas, partition.adding, partition.removing):
        return partition
    # However many replicas are removed, the leader epoch rises only once.
    leader_epoch = partition.leader_epoch + (done.leader_epoch > partition.leader_epoch)
    return done._replace(leader_epoch=leader_epoch, partition_epoch=partition.partition_epoch + 1)


def settled_replicas(partition: PartitionImage) -> tuple[int, ...]:
    """Return the replicas without those being added: the set that a cancellation restores."""
    return tuple(node_id for node_id in partition.replicas if node_id not in partition.adding)


def _target_problem(cluster: _Cluster, partition: PartitionImage, target: tuple[int, ...]) -> Refusal | None:
    unknown = [node_id for node_id in target if cluster.image.broker(node_id) is None]
    rules = (
        (1 <= len(target) <= MAX_REPLICATION_FACTOR, f"a partition has 1 to {MAX_REPLICATION_FACTOR} replicas"),
        (len(set(target)) == len(target), "a replica is named twice"),
        (not unknown, f"{unknown[:20]} are not registered; name brokers of this cluster"),
    )
    for holds, message in rules:
        if not holds:
            return Refusal(code=ErrorCode.INVALID_REQUEST, message=f"replicas {list(target[:20])}: {message}")
    for node_id in target:
        full = cluster.replicas[node_id] >= cluster.max_broker_replicas
        if full and node_id not in partition.replicas:
            return Refusal(
                code=ErrorCode.LIMIT_EXCEEDED,
                message=f"broker {node_id} has {cluster.max_broker_replicas} replicas, its limit; name another one",
            )
    return None


def completed(topic: TopicImage, partition: PartitionImage, can_lead: CanLead) -> PartitionImage:
    """Return the partition with its reassignment completed if possible, else unchanged. The partition epoch stays."""
    if not partition.adding and not partition.removing:
        return partition
    target = partition.target_replicas
    staying = [node_id for node_id in partition.isr if node_id in target]
    in_sync = set(partition.adding) <= set(staying)
    if not in_sync or len(staying) < min(min_insync_replicas(topic), len(target)):
        return partition
    done = _without(topic, partition._replace(adding=(), removing=()), target, can_lead)
    return partition if isinstance(done, Refusal) or done.leader_id is None else done


def _cancel(topic: TopicImage, partition: PartitionImage, can_lead: CanLead) -> PartitionImage | Refusal:
    if not partition.adding and not partition.removing:
        return Refusal(
            code=ErrorCode.INVALID_REQUEST,
            message=f"no reassignment of {topic.topic} partition {partition.partition} is under way",
        )
    back = _without(topic, partition._replace(adding=(), removing=()), settled_replicas(partition), can_lead)
    return back if isinstance(back, Refusal) else back._replace(partition_epoch=partition.partition_epoch + 1)


def _without(
    topic: TopicImage, partition: PartitionImage, replicas: tuple[int, ...], can_lead: CanLead
) -> PartitionImage | Refusal:
    """Return the partition with only these of its replicas, one leader epoch higher; or the refusal."""
    isr = tuple(node_id for node_id in partition.isr if node_id in replicas)
    if not isr:
        return Refusal(
            code=ErrorCode.INVALID_REQUEST,
            message=f"no replica of {list(replicas)} is in sync: what is committed would be lost; wait until one is",
        )
    smaller = partition._replace(replicas=replicas, elr=_kept(partition.elr, replicas))
    state = changed_isr(smaller, isr, min_isr=min_insync_replicas(topic))
    gone = awaited_brokers(partition.awaited)
    return smaller._replace(
        isr=state.isr,
        elr=state.elr,
        last_known_elr=_kept(state.last_known_elr, replicas),
        leader_id=elect(replicas, isr, partition.leader_id, lambda node_id: node_id not in gone and can_lead(node_id)),
        leader_epoch=partition.leader_epoch + 1,
    )


def _kept(node_ids: tuple[int, ...], replicas: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(node_id for node_id in node_ids if node_id in replicas)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListCursor:
    """The position at which a list continues: this partition of the topic, or the next topic if it was deleted."""

    topic: str
    next_partition: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReassignmentPage:
    """Reassignments under way as (topic, partition), ascending by name and number. `then` None: this is the last page."""

    found: tuple[tuple[str, PartitionImage], ...]
    then: ListCursor | None


def list_reassignments(
    image: MetadataImage, settings: ControllerSettings, start: ListCursor | None, topics: Sequence[str] | None = None
) -> ReassignmentPage:
    """Return one page of reassignments.

    Args:
        image: the metadata.
        settings: limits of a page.
        start: where to continue; None: at the beginning.
        topics: names of the topics to list; None: all. Unknown topics have no reassignments.
    """
    found: list[tuple[str, PartitionImage]] = []
    seen = 0
    for topic in _topics(image, start, topics):
        first = start.next_partition if start is not None and topic.topic == start.topic else 0
        for number in range(first, len(topic.partitions)):
            if seen >= settings.max_sweep_partitions or len(found) >= settings.max_listed_reassignments:
                then = ListCursor(topic=topic.topic, next_partition=number)
                return ReassignmentPage(found=tuple(found), then=then)
            seen += 1
            partition = topic.partitions[number]
            if partition.adding or partition.removing:
                found.append((topic.topic, partition))
    return ReassignmentPage(found=tuple(found), then=None)


def _topics(image: MetadataImage, start: ListCursor | None, names: Sequence[str] | None) -> Iterator[TopicImage]:
    if names is not None:
        wanted = (image.topic_by_name(name) for name in sorted(set(names)) if start is None or name >= start.topic)
        yield from (topic for topic in wanted if topic is not None)
        return
    if start is not None:
        same = image.topic_by_name(start.topic)
        if same is not None:
            yield same
    yield from image.topics(after=None if start is None else start.topic)
