# SPDX-License-Identifier: Apache-2.0
"""Configs of topics, brokers, groups and the cluster: their changes, and which value applies.

Owns the precedence: the value of the topic, else of the broker that has the replica, else of the cluster, else the built-in default;
for groups: the value of the group, else of the cluster, else the default.
Laws: a request is carried out completely or not at all, in one batch of records; a refusal names the config and its allowed values.
A staging topic gets the values that it follows with its topic, in the same batch (`staging.py`).
`topic_configs.py` has the table of configs.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from lograft.wire.codes import ErrorCode

from metaquorum.controller.appended import AppendedImage
from metaquorum.controller.commands import (
    AlterConfigs,
    Decision,
    Done,
    Refusal,
    ResourceChanges,
    SweepPartitions,
    refuse,
)
from metaquorum.controller.settings import ControllerSettings
from metaquorum.controller.staging import FOLLOWED_CONFIGS, config_problem, staging_of
from metaquorum.metadata.group_configs import combination_problem, group_id_problem
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.isr import cleared_elr
from metaquorum.metadata.records import MAX_NODE_ID, ConfigRecord, ConfigResource, MetadataRecord
from metaquorum.metadata.state import TopicImage
from metaquorum.metadata.topic_configs import (
    FLUSH_POLICY,
    GROUP_HEARTBEAT_INTERVAL,
    GROUP_SESSION_TIMEOUT,
    MIN_INSYNC_REPLICAS,
    OF_GROUPS,
    TOPIC_CONFIGS,
    UNCLEAN_ELECTION,
    ConfigDefinition,
    TopicSettings,
    effective,
    internal_problem,
    name_problem,
    value_problem,
)
from metaquorum.metadata.topic_names import is_internal, staged_topic_id

_SHOWN_CHARACTERS = 250


class ConfigSource(Enum):
    """Where the value of a config comes from."""

    DEFAULT = "default"
    """Built in."""
    TOPIC = "topic"
    """Set for the topic."""
    BROKER = "broker"
    """Set for the broker."""
    CLUSTER = "cluster"
    """Set for the cluster."""
    GROUP = "group"
    """Set for the group."""


class OtherConfigs(Protocol):
    """An image in which configs of brokers, groups and the cluster are looked up: committed or appended."""

    def configs_of(self, resource: ConfigResource, name: str) -> Mapping[str, str]:
        """Return the configs set for a broker, a group or the cluster."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigValue:
    """A config, the value that applies, and its source."""

    definition: ConfigDefinition
    value: str
    source: ConfigSource


def settings_of(image: OtherConfigs, topic_configs: Mapping[str, str], broker_id: int | None) -> TopicSettings:
    """Return the settings of a topic.

    Args:
        image: image with the inherited values.
        topic_configs: configs set for the topic.
        broker_id: broker whose replicas are meant; None: without values of brokers.
    """
    inherited = image.configs_of(ConfigResource.CLUSTER, "")
    if broker_id is not None:
        own = image.configs_of(ConfigResource.BROKER, str(broker_id))
        inherited = {**inherited, **own} if own else inherited
    return effective({**inherited, **topic_configs} if inherited else topic_configs)


def ack_since(image: AppendedImage, topic: TopicImage, broker_id: int) -> int:
    """Return the metadata offset since which a topic with policy `ack` has had this policy at a broker; 0: always.

    It may be later than the true one, never earlier: for an inherited policy, the latest switch of any level counts.
    """
    own = image.ack_switch(ConfigResource.TOPIC, topic.topic_id.hex()) or 0
    if FLUSH_POLICY in topic.configs:
        return own
    of_broker = image.ack_switch(ConfigResource.BROKER, str(broker_id)) or 0
    return max(own, of_broker, image.ack_switch(ConfigResource.CLUSTER, "") or 0)


def value_for_broker(image: OtherConfigs, broker_id: int, name: str) -> str:
    """Return the value of a config for a broker: its own, else the cluster's, else the default."""
    own = image.configs_of(ConfigResource.BROKER, str(broker_id)).get(name)
    if own is not None:
        return own
    return image.configs_of(ConfigResource.CLUSTER, "").get(name, TOPIC_CONFIGS[name].default)


def alter(image: AppendedImage, settings: ControllerSettings, command: AlterConfigs) -> Decision:
    """Decide about changes of configs."""
    count = sum(len(each.changes) for each in command.resources)
    if not 1 <= count <= settings.max_config_changes:
        return refuse(
            ErrorCode.INVALID_REQUEST,
            f"a request has 1 to {settings.max_config_changes} config changes, this one has {count}",
        )
    records: list[MetadataRecord] = []
    seen: set[tuple[ConfigResource, str, str]] = set()
    changed: dict[tuple[ConfigResource, str], dict[str, str]] = {}
    for changes in command.resources:
        found = _find(image, changes.resource, changes.name)
        if isinstance(found, Refusal):
            return Decision(response=found)
        for name, value in changes.changes:
            refusal = _change_problem(image, found, changes, name, value, seen)
            if refusal is not None:
                return Decision(response=refusal)
            seen.add((changes.resource, changes.name, name))
            if changes.resource in OF_GROUPS:
                configs = changed.setdefault((changes.resource, changes.name), dict(found.configs))
                if value is None:
                    configs.pop(name, None)
                else:
                    configs[name] = value
            _add_records(records, changes.resource, found, name, value)
            staging = staging_of(image, found.topic) if found.topic is not None and name in FOLLOWED_CONFIGS else None
            if staging is not None:
                _add_records(records, changes.resource, _of_topic(staging), name, value)
    refusal = _group_problem(image, settings, changed, seen)
    if refusal is not None:
        return Decision(response=refusal)
    if command.validate_only:
        return Decision(response=Done())
    # An unclean election may now be allowed, so a partition without a leader may get one.
    elects = any(name == UNCLEAN_ELECTION for _, _, name in seen)
    return Decision(response=Done(), records=tuple(records), then=SweepPartitions() if records and elects else None)


def _add_records(
    records: list[MetadataRecord], resource: ConfigResource, found: _Resource, name: str, value: str | None
) -> None:
    if value is not None or name in found.configs:
        records.append(ConfigRecord(resource=resource, resource_name=found.record_name, name=name, value=value))
    if name == MIN_INSYNC_REPLICAS and found.topic is not None:
        records.extend(cleared_elr(found.topic, int(value or TOPIC_CONFIGS[name].default)))


def _change_problem(
    image: AppendedImage,
    found: _Resource,
    changes: ResourceChanges,
    name: str,
    value: str | None,
    seen: set[tuple[ConfigResource, str, str]],
) -> Refusal | None:
    if (changes.resource, changes.name, name) in seen:
        return Refusal(
            code=ErrorCode.INVALID_REQUEST,
            message=f"{name[:100]} of {changes.resource.name.lower()} {changes.name[:_SHOWN_CHARACTERS]!r} is named twice",
        )
    problem = name_problem(changes.resource, name) if value is None else value_problem(changes.resource, name, value)
    if problem is None and found.topic is not None and is_internal(found.topic.topic):
        is_staging = staged_topic_id(found.topic.topic) is not None
        problem = config_problem(image, found.topic, name) if is_staging else internal_problem(name, value)
    return None if problem is None else Refusal(code=ErrorCode.INVALID_CONFIG, message=problem)


def _group_problem(
    image: AppendedImage,
    settings: ControllerSettings,
    changed: Mapping[tuple[ConfigResource, str], Mapping[str, str]],
    named: Set[tuple[ConfigResource, str, str]],
) -> Refusal | None:
    """Return why configs of groups may not become what they would be; None if they may, or if the request has none.

    Args:
        image: the metadata before the request.
        settings: limits.
        changed: configs of each changed resource of `OF_GROUPS` after the request.
        named: resource, its name and the config of each change.
    """
    of_cluster = changed.get((ConfigResource.CLUSTER, ""))
    inherited = image.configs_of(ConfigResource.CLUSTER, "") if of_cluster is None else of_cluster
    new_count = 0
    for (resource, name), configs in changed.items():
        is_group = resource is ConfigResource.GROUP
        # A change of the cluster does not look at every group: a coordinator shortens the heartbeat interval if need be.
        is_session = any((resource, name, each) in named for each in (GROUP_SESSION_TIMEOUT, GROUP_HEARTBEAT_INTERVAL))
        problem = combination_problem({**inherited, **configs} if is_group else configs) if is_session else None
        if problem is not None:
            return Refusal(code=ErrorCode.INVALID_CONFIG, message=problem)
        new_count += is_group and bool(configs) and not image.configs_of(resource, name)
    if new_count and image.configured_group_count() + new_count > settings.max_configured_groups:
        return Refusal(
            code=ErrorCode.LIMIT_EXCEEDED,
            message=f"configs are set for {settings.max_configured_groups} groups already; unset those of some",
        )
    return None


@dataclass(frozen=True, slots=True)
class _Resource:
    """A resource that may have configs: its name in records, the configs set for it, and its topic or broker."""

    record_name: str
    configs: Mapping[str, str]
    topic: TopicImage | None = None
    broker_id: int | None = None


def _of_topic(topic: TopicImage) -> _Resource:
    return _Resource(topic.topic_id.hex(), topic.configs, topic=topic)


def _find(image: AppendedImage | MetadataImage, resource: ConfigResource, name: str) -> _Resource | Refusal:
    if resource is ConfigResource.TOPIC:
        topic = image.topic_by_name(name)
        if topic is None:
            return Refusal(code=ErrorCode.UNKNOWN_TOPIC, message=f"there is no topic {name[:_SHOWN_CHARACTERS]!r}")
        return _of_topic(topic)
    if resource is ConfigResource.CLUSTER:
        if name:
            return Refusal(
                code=ErrorCode.INVALID_REQUEST,
                message=f"the cluster has no name, leave {name[:_SHOWN_CHARACTERS]!r} out",
            )
        return _Resource("", image.configs_of(resource, ""))
    if resource is ConfigResource.GROUP:
        problem = group_id_problem(name)
        if problem is not None:
            return Refusal(code=ErrorCode.INVALID_REQUEST, message=problem)
        return _Resource(name, image.configs_of(resource, name))
    # Only the canonical decimal form: another form of the same number would be another row.
    is_id = name.isascii() and name.isdigit() and len(name) <= len(str(MAX_NODE_ID)) and name == str(int(name))
    configs = image.configs_of(resource, name)
    # Configs of a removed broker can still be read and removed.
    if not is_id or (image.broker(int(name)) is None and not configs):
        return Refusal(
            code=ErrorCode.INVALID_REQUEST,
            message=f"no broker {name[:_SHOWN_CHARACTERS]!r} is registered; name a broker by its id in decimal",
        )
    return _Resource(name, configs, broker_id=int(name))


def describe(
    image: MetadataImage, resource: ConfigResource, name: str, broker_id: int | None
) -> list[ConfigValue] | Refusal:
    """Return all configs of a resource, ascending by name, or the refusal.

    Args:
        image: the metadata.
        resource: kind of the resource.
        name: its name, as in `ResourceChanges`.
        broker_id: for topics: broker whose replicas are meant; None: without values of brokers.
    """
    found = _find(image, resource, name)
    if isinstance(found, Refusal):
        return found
    layers: list[tuple[ConfigSource, Mapping[str, str]]] = []
    if found.topic is not None:
        layers.append((ConfigSource.TOPIC, found.configs))
    elif resource is ConfigResource.GROUP:
        layers.append((ConfigSource.GROUP, found.configs))
        broker_id = None
    else:
        broker_id = found.broker_id
    if broker_id is not None:
        layers.append((ConfigSource.BROKER, image.configs_of(ConfigResource.BROKER, str(broker_id))))
    layers.append((ConfigSource.CLUSTER, image.configs_of(ConfigResource.CLUSTER, "")))
    return [_value(definition, layers) for definition in TOPIC_CONFIGS.values() if resource in definition.scopes]


def _value(definition: ConfigDefinition, layers: list[tuple[ConfigSource, Mapping[str, str]]]) -> ConfigValue:
    for source, configs in layers:
        value = configs.get(definition.name)
        if value is not None:
            return ConfigValue(definition=definition, value=value, source=source)
    return ConfigValue(definition=definition, value=definition.default, source=ConfigSource.DEFAULT)
