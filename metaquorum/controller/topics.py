# SPDX-License-Identifier: Apache-2.0
"""Decisions about topics: creation, growth and deletion.

Owns the checks of a request, and the records of a topic. Laws: a topic with its partitions and configs is one batch of records, so it
exists completely or not at all. Its staging topic, if there is one, grows and goes in the same batch (`staging.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from lograft.wire.codes import ErrorCode

from metaquorum.controller import staging
from metaquorum.controller.appended import AppendedImage
from metaquorum.controller.commands import (
    CreatePartitions,
    CreateTopic,
    Decision,
    DeleteTopic,
    PartitionsCreated,
    Refusal,
    TopicCreated,
    TopicDeleted,
    refuse,
)
from metaquorum.controller.placement import UsableBroker, place
from metaquorum.controller.settings import ControllerSettings
from metaquorum.metadata import topic_configs, topic_names
from metaquorum.metadata.records import (
    ConfigRecord,
    ConfigResource,
    MetadataRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from metaquorum.metadata.state import PartitionCounts, PartitionImage, TopicImage
from metaquorum.metadata.topic_configs import DEFAULT_MIN_INSYNC, MIN_INSYNC_REPLICAS, TOPIC_CONFIGS

FIRST_EPOCH = 0
"""Leader and partition epoch of a new partition."""


def create(image: AppendedImage, settings: ControllerSettings, command: CreateTopic, *, may_grow: bool) -> Decision:
    """Decide about a new topic. `may_grow`: further brokers may be about to register for the first time."""
    refusal = _name_problem(image, command)
    if refusal is not None:
        return refusal
    staged = None
    if command.topic.startswith(topic_names.STAGING_PREFIX):
        # Before the size: a count that is not the topic's has another meaning here than one that is out of range.
        staged = staging.staged_topic(image, settings, command)
        if isinstance(staged, Refusal):
            return Decision(response=staged)
    refusal = _size_problem(image, settings, command)
    if refusal is not None:
        return refusal
    config_problem = topic_configs.problem(command.configs)
    if config_problem is not None:
        return refuse(ErrorCode.INVALID_CONFIG, config_problem)
    if staged is not None:
        beside = staging.place(image, settings, staged)
        if isinstance(beside, Refusal):
            return Decision(response=beside)
        return _created(command, staging.first_configs(staged, command.configs), beside)
    factor = command.replication_factor or settings.default_replication_factor
    partitions = _place(
        image,
        settings,
        None,
        count=command.partition_count or 1,
        factor=factor,
        seed=command.placement_seed,
        may_grow=may_grow,
    )
    if isinstance(partitions, Decision):
        return partitions
    return _created(command, {**_first_configs(image, factor), **command.configs}, partitions)


def _created(command: CreateTopic, configs: Mapping[str, str], partitions: tuple[PartitionImage, ...]) -> Decision:
    return Decision(
        response=TopicCreated(topic=command.topic, topic_id=command.topic_id, partitions=partitions, configs=configs),
        records=() if command.validate_only else _topic_records(command, configs, partitions),
    )


def _first_configs(image: AppendedImage, factor: int) -> dict[str, str]:
    """Return the configs that a new topic gets by default as its own.

    `min.insync.replicas` becomes a config of the topic itself, so that a later default does not change existing topics (ADR 10).
    """
    inherited = image.configs_of(ConfigResource.CLUSTER, "").get(DEFAULT_MIN_INSYNC)
    wanted = int(inherited or TOPIC_CONFIGS[DEFAULT_MIN_INSYNC].default)
    min_isr = min(wanted, factor - 1)
    return {MIN_INSYNC_REPLICAS: str(min_isr)} if min_isr > 1 else {}


def grow(image: AppendedImage, settings: ControllerSettings, command: CreatePartitions, *, may_grow: bool) -> Decision:
    """Decide about more partitions of a topic; existing ones stay as they are. `may_grow`: see `create`."""
    topic = image.topic_by_name(command.topic)
    if topic is None:
        return _unknown(command.topic)
    staging_problem = staging.change_problem(image, command.topic)
    if staging_problem is not None:
        return refuse(ErrorCode.INVALID_TOPIC_NAME, staging_problem)
    beside = staging.staging_of(image, topic)
    present = len(topic.partitions)
    count = command.partition_count - present
    if count < 1:
        return refuse(
            ErrorCode.INVALID_PARTITION_COUNT,
            f"topic {topic.topic} has {present} partitions and can only get more: name {present + 1} or more, "
            f"not {command.partition_count}",
        )
    refusal = _growth_problem(image, settings, count, with_staging=beside is not None)
    if refusal is not None:
        return refusal
    partitions = _place(
        image,
        settings,
        topic,
        count=count,
        factor=topic.replication_factor,
        seed=command.placement_seed,
        may_grow=may_grow,
        with_staging=beside is not None,
    )
    if isinstance(partitions, Decision):
        return partitions
    records = [_partition_record(topic.topic_id, partition) for partition in partitions]
    if beside is not None:
        assert len(beside.partitions) == present, (
            f"{beside.topic} has {len(beside.partitions)} partitions, not {present}"
        )
        records.extend(_partition_record(beside.topic_id, partition) for partition in partitions)
    return Decision(
        response=PartitionsCreated(topic=topic.topic, topic_id=topic.topic_id, partitions=partitions),
        records=() if command.validate_only else tuple(records),
    )


def _place(
    image: AppendedImage,
    settings: ControllerSettings,
    topic: TopicImage | None,
    *,
    count: int,
    factor: int,
    seed: int,
    may_grow: bool,
    with_staging: bool = False,
) -> tuple[PartitionImage, ...] | Decision:
    """Return the new partitions of an existing or a new topic, or the refusal. `with_staging`: each place is taken twice."""
    copies = 2 if with_staging else 1
    fit = [broker for broker in image.brokers() if broker.can_lead]
    replicas = image.counts.replicas
    usable = [
        UsableBroker(broker.broker_id, broker.rack)
        for broker in fit
        if replicas.get(broker.broker_id, 0) + copies <= settings.max_broker_replicas
    ]
    if len(fit) < factor:
        registered = sum(1 for _ in image.brokers())
        return _too_few_brokers(factor, usable=len(fit), registered=registered, may_grow=may_grow)
    if len(usable) < factor:
        return _brokers_full(settings)
    present = PartitionCounts()
    for partition in () if topic is None else topic.partitions:
        present.add(partition._replace(leader_id=partition.replicas[0]))
    placed = place(
        count,
        factor,
        usable,
        topic=present,
        cluster=image.counts,
        seed=seed,
        max_leader_lookups=settings.max_leader_lookups,
    )
    added = Counter(broker_id for each in placed for broker_id in each)
    if any(
        replicas.get(broker_id, 0) + copies * more > settings.max_broker_replicas for broker_id, more in added.items()
    ):
        return _brokers_full(settings)
    first = 0 if topic is None else len(topic.partitions)
    return tuple(
        PartitionImage(number, each, each, each[0], FIRST_EPOCH, FIRST_EPOCH)
        for number, each in enumerate(placed, start=first)
    )


def _too_few_brokers(factor: int, *, usable: int, registered: int, may_grow: bool) -> Decision:
    """Refuse for lack of brokers: temporarily if the registered ones would be enough or more may come, else for good."""
    # A cluster that has just started has few brokers for a moment; later, a request for more brokers than exist is a mistake.
    is_passing = registered >= factor or not registered or may_grow
    return refuse(
        ErrorCode.BROKER_FENCED if is_passing else ErrorCode.NOT_ENOUGH_BROKERS,
        f"{factor} usable broker(s) needed, {usable} present ({registered} registered); start a broker, or wait until it is ready",
    )


def _brokers_full(settings: ControllerSettings) -> Decision:
    return refuse(
        ErrorCode.LIMIT_EXCEEDED,
        f"a broker would have more than {settings.max_broker_replicas} replicas; add brokers or delete topics",
    )


def _growth_problem(
    image: AppendedImage, settings: ControllerSettings, count: int, *, with_staging: bool = False
) -> Decision | None:
    """Return the refusal of `count` more partitions, or None. `with_staging`: the staging topic gets as many."""
    created = 2 * count if with_staging else count
    those = f"{created} (half of them for the staging topic)" if with_staging else f"{count}"
    if created > settings.max_request_partitions:
        return refuse(
            ErrorCode.INVALID_PARTITION_COUNT,
            f"one request creates at most {settings.max_request_partitions} partitions, not {those}; use several",
        )
    if image.counts.partitions + created > settings.max_partitions:
        return refuse(
            ErrorCode.LIMIT_EXCEEDED,
            f"the cluster has {image.counts.partitions} partitions and may have {settings.max_partitions}, "
            f"so {those} are too many; delete topics, or ask for fewer",
        )
    return None


def _name_problem(image: AppendedImage, command: CreateTopic) -> Decision | None:
    problem = topic_names.problem(command.topic)
    if problem is not None:
        return refuse(ErrorCode.INVALID_TOPIC_NAME, problem)
    if image.topic_by_name(command.topic) is not None:
        return refuse(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {command.topic} exists")
    assert image.topic_by_id(command.topic_id) is None, f"topic id {command.topic_id.hex()} was drawn twice"
    return None


def _size_problem(image: AppendedImage, settings: ControllerSettings, command: CreateTopic) -> Decision | None:
    if not 0 <= command.partition_count <= settings.max_request_partitions:
        return refuse(
            ErrorCode.INVALID_PARTITION_COUNT,
            f"the partition count must be from 1 to {settings.max_request_partitions}, not {command.partition_count}",
        )
    if not 0 <= command.replication_factor <= topic_configs.MAX_REPLICATION_FACTOR:
        return refuse(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"the replication factor must be from 1 to {topic_configs.MAX_REPLICATION_FACTOR}, "
            f"not {command.replication_factor}",
        )
    if image.topic_count >= settings.max_topics:
        return refuse(ErrorCode.LIMIT_EXCEEDED, f"the cluster has {image.topic_count} topics, its limit")
    return _growth_problem(image, settings, max(1, command.partition_count))


def _topic_records(
    command: CreateTopic, configs: Mapping[str, str], partitions: tuple[PartitionImage, ...]
) -> tuple[MetadataRecord, ...]:
    records: list[MetadataRecord] = [TopicRecord(topic=command.topic, topic_id=command.topic_id)]
    records.extend(
        ConfigRecord(
            resource=ConfigResource.TOPIC,
            resource_name=command.topic_id.hex(),
            name=name,
            value=configs[name],
        )
        for name in sorted(configs)
    )
    records.extend(_partition_record(command.topic_id, partition) for partition in partitions)
    return tuple(records)


def _partition_record(topic_id: bytes, partition: PartitionImage) -> PartitionRecord:
    return PartitionRecord(
        topic_id=topic_id,
        partition=partition.partition,
        replicas=partition.replicas,
        isr=partition.isr,
        leader_id=partition.leader_id,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        elr=partition.elr,
    )


def delete(image: AppendedImage, command: DeleteTopic) -> Decision:
    """Decide about the deletion of a topic."""
    topic = image.topic_by_name(command.topic)
    if topic is None:
        return _unknown(command.topic)
    staging_problem = staging.change_problem(image, command.topic)
    if staging_problem is not None:
        return refuse(ErrorCode.INVALID_TOPIC_NAME, staging_problem)
    beside = staging.staging_of(image, topic)
    gone = (topic,) if beside is None else (topic, beside)
    return Decision(
        response=TopicDeleted(topic_id=topic.topic_id),
        records=tuple(RemoveTopicRecord(topic_id=each.topic_id) for each in gone),
    )


def _unknown(topic: str) -> Decision:
    return refuse(ErrorCode.UNKNOWN_TOPIC, f"there is no topic {topic[:250]!r}")
