# SPDX-License-Identifier: Apache-2.0
"""Configs: requests of AdminService to commands, and configs to answers.

Owns the translation. Does not decide which value applies.
"""

from __future__ import annotations

from typing import Final

from lograft.v1 import admin_pb2
from lograft.wire.codes import ErrorCode

from metaquorum.controller.commands import AlterConfigs, Refusal, ResourceChanges
from metaquorum.controller.configs import ConfigSource, ConfigValue, describe
from metaquorum.controller_service.commit_waiters import CommandError
from metaquorum.controller_service.operation import Member
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.records import ConfigResource
from metaquorum.metadata.state import TopicImage

MAX_DESCRIBED_RESOURCES: Final = 1_000
"""Resources that one request may describe."""

_RESOURCES: Final = {
    admin_pb2.CONFIG_RESOURCE_TYPE_TOPIC: ConfigResource.TOPIC,
    admin_pb2.CONFIG_RESOURCE_TYPE_BROKER: ConfigResource.BROKER,
    admin_pb2.CONFIG_RESOURCE_TYPE_CLUSTER: ConfigResource.CLUSTER,
    admin_pb2.CONFIG_RESOURCE_TYPE_GROUP: ConfigResource.GROUP,
}
_SOURCES: Final = {
    ConfigSource.DEFAULT: admin_pb2.CONFIG_SOURCE_DEFAULT,
    ConfigSource.TOPIC: admin_pb2.CONFIG_SOURCE_TOPIC,
    ConfigSource.BROKER: admin_pb2.CONFIG_SOURCE_BROKER,
    ConfigSource.CLUSTER: admin_pb2.CONFIG_SOURCE_CLUSTER,
    ConfigSource.GROUP: admin_pb2.CONFIG_SOURCE_GROUP,
}


def alter(request: admin_pb2.AlterConfigsRequest, _member: Member) -> AlterConfigs:
    """Return the command for a request.

    Raises:
        CommandError: INVALID_REQUEST: the type of a resource is unknown.
    """
    resources: list[ResourceChanges] = []
    for each in request.resources:
        resource = each.resource
        changes = [(change.name, change.value if change.HasField("value") else None) for change in each.changes]
        resources.append(ResourceChanges(resource=_kind(resource), name=resource.name, changes=tuple(changes)))
    return AlterConfigs(resources=tuple(resources), validate_only=request.validate_only)


def describe_configs(
    request: admin_pb2.DescribeConfigsRequest, image: MetadataImage
) -> admin_pb2.DescribeConfigsResponse:
    """Return the configs of the requested resources.

    Raises:
        CommandError: INVALID_REQUEST, UNKNOWN_TOPIC.
    """
    if not 1 <= len(request.resources) <= MAX_DESCRIBED_RESOURCES:
        raise CommandError(
            ErrorCode.INVALID_REQUEST,
            f"a request names 1 to {MAX_DESCRIBED_RESOURCES} resources, this one {len(request.resources)}",
        )
    broker_id = request.broker_id if request.HasField("broker_id") else None
    answer = admin_pb2.DescribeConfigsResponse(metadata_offset=image.metadata_offset)
    for resource in request.resources:
        values = describe(image, _kind(resource), resource.name, broker_id)
        if isinstance(values, Refusal):
            raise CommandError(values.code, values.message)
        answer.resources.add(resource=resource, configs=map(_entry, values))
    return answer


def of_topic(image: MetadataImage, topic: TopicImage) -> list[admin_pb2.ConfigEntry]:
    """Return all configs of a topic, ascending by name, each with its source."""
    values = describe(image, ConfigResource.TOPIC, topic.topic, None)
    assert not isinstance(values, Refusal), f"{topic.topic} is in the image and refused: {values}"
    return [
        admin_pb2.ConfigEntry(name=each.definition.name, value=each.value, source=_SOURCES[each.source])
        for each in values
    ]


def _entry(value: ConfigValue) -> admin_pb2.ConfigEntry:
    return admin_pb2.ConfigEntry(
        name=value.definition.name,
        value=value.value,
        source=_SOURCES[value.source],
        meaning=value.definition.meaning,
        allowed=value.definition.allowed,
        default_value=value.definition.default,
    )


def _kind(resource: admin_pb2.ConfigResource) -> ConfigResource:
    found = _RESOURCES.get(resource.type)
    if found is None:
        raise CommandError(
            ErrorCode.INVALID_REQUEST,
            f"configs belong to a topic, a broker, a group or the cluster, not to type {resource.type}",
        )
    return found
