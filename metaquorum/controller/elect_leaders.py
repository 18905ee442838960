# SPDX-License-Identifier: Apache-2.0
"""Preferred and unclean elections on request, partition by partition.

Owns who is elected, which partitions need no election, and the reasons of refusals. Law: a partition whose leader may lead never gets
a leader that lacks committed records; a repeated request changes nothing more.
Source: KIP-460; `docs/controller.md` section "Elections that are asked for".
"""

from __future__ import annotations

from collections.abc import Iterable

from lograft.wire.codes import ErrorCode

from metaquorum.controller.appended import AppendedImage
from metaquorum.controller.commands import (
    Decision,
    ElectionKind,
    ElectionResult,
    ElectionTarget,
    ElectLeaders,
    LeadersElected,
    Refusal,
)
from metaquorum.controller.elections import (
    CanLead,
    ElectionRules,
    after_election,
    not_available,
    partition_change,
    preferred_change,
)
from metaquorum.controller.settings import ControllerSettings
from metaquorum.metadata.isr import min_insync_replicas
from metaquorum.metadata.records import MetadataRecord, PartitionChangeRecord
from metaquorum.metadata.state import PartitionImage, TopicImage

_SHOWN_CHARACTERS = 250


def elect_leaders(image: AppendedImage, settings: ControllerSettings, command: ElectLeaders) -> Decision:
    """Decide about elections, for each partition separately."""
    refusal = _request_problem(image, settings, command.targets)
    if refusal is not None:
        return Decision(response=refusal)
    fit = {broker.broker_id for broker in image.brokers() if broker.can_lead}
    records: list[MetadataRecord] = []
    results: list[ElectionResult] = []
    for target in command.targets:
        topic = image.topic_by_name(target.topic)
        for number in _numbers(topic, target):
            found = _elect(topic, target.topic, number, command.kind, fit.__contains__)
            if isinstance(found, PartitionChangeRecord):
                assert topic is not None, f"an election in {target.topic}, which is unknown"
                records.append(found)
                outcome = after_election(topic.partitions[number], found)
                results.append(ElectionResult(topic=target.topic, partition=number, outcome=outcome, elected=True))
            else:
                results.append(ElectionResult(topic=target.topic, partition=number, outcome=found))
    return Decision(
        response=LeadersElected(results=tuple(results)), records=() if command.validate_only else tuple(records)
    )


def _request_problem(
    image: AppendedImage, settings: ControllerSettings, targets: tuple[ElectionTarget, ...]
) -> Refusal | None:
    count = 0
    seen: set[tuple[str, int]] = set()
    for target in targets:
        topic = image.topic_by_name(target.topic)
        if topic is None and target.partitions is None:
            return Refusal(
                code=ErrorCode.UNKNOWN_TOPIC, message=f"there is no topic {target.topic[:_SHOWN_CHARACTERS]!r}"
            )
        numbers = _numbers(topic, target)
        count += len(numbers)
        if count <= settings.max_elected_partitions:
            # Beyond the limit the request is refused, so larger sets are not collected.
            seen.update((target.topic, number) for number in numbers)
    if not 1 <= count <= settings.max_elected_partitions:
        return Refusal(
            code=ErrorCode.INVALID_REQUEST,
            message=f"a request elects leaders of 1 to {settings.max_elected_partitions} partitions, this one of {count}; "
            "name some of them and use several requests",
        )
    if len(seen) < count:
        return Refusal(code=ErrorCode.INVALID_REQUEST, message="a partition is named twice")
    return None


def _numbers(topic: TopicImage | None, target: ElectionTarget) -> range | tuple[int, ...]:
    if target.partitions is not None:
        return target.partitions
    return range(0 if topic is None else len(topic.partitions))


def _elect(
    topic: TopicImage | None, name: str, number: int, kind: ElectionKind, can_lead: CanLead
) -> PartitionChangeRecord | PartitionImage | Refusal:
    """Return the change that an election needs, the partition if it needs none, or the refusal."""
    if topic is None:
        return Refusal(code=ErrorCode.UNKNOWN_TOPIC, message=f"there is no topic {name[:_SHOWN_CHARACTERS]!r}")
    if not 0 <= number < len(topic.partitions):
        return Refusal(code=ErrorCode.UNKNOWN_PARTITION, message=f"topic {name} has no partition {number}")
    partition = topic.partitions[number]
    if kind is ElectionKind.PREFERRED:
        return _preferred(topic, partition, can_lead)
    return _unclean(topic, partition, can_lead)


def _preferred(
    topic: TopicImage, partition: PartitionImage, can_lead: CanLead
) -> PartitionChangeRecord | PartitionImage | Refusal:
    preferred = partition.replicas[0]
    if partition.leader_id == preferred:
        return partition
    change = preferred_change(topic.topic_id, partition, can_lead)
    if change is not None:
        return change
    reasons = (
        (partition.leader_id is None, "it has no leader, so no leader has to resign; an unclean election may help"),
        (preferred not in partition.isr, f"its first replica {preferred} is not in sync; wait until it is"),
        (True, f"its first replica {preferred} is fenced or leaving; wait until it is active"),
    )
    return not_available(topic, partition, next(text for holds, text in reasons if holds))


def _unclean(
    topic: TopicImage, partition: PartitionImage, can_lead: CanLead
) -> PartitionChangeRecord | PartitionImage | Refusal:
    if partition.leader_id is not None and can_lead(partition.leader_id):
        return partition
    rules = ElectionRules(min_isr=min_insync_replicas(topic), unclean=True)
    # A replica with everything committed is elected before any other, as in a clean election.
    change = partition_change(topic.topic_id, partition, can_lead, rules=rules)
    if change is None or change.leader is None or change.leader.leader_id is None:
        replicas = _ids(partition.replicas)
        return not_available(topic, partition, f"none of its replicas {replicas} is active; start one of them")
    return change


def _ids(node_ids: Iterable[int]) -> str:
    return ", ".join(map(str, node_ids))
