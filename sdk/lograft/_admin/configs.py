# SPDX-License-Identifier: Apache-2.0
"""The admin calls about configs.

This module converts the caller's values to requests and answers back. It must not hold state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from lograft._admin.calls import AdminCalls
from lograft.errors import UsageError
from lograft.types import ConfigResource, ConfigResourceType, ConfigSource, ConfigValue
from lograft.v1 import admin_pb2

_TYPES: Final = {
    ConfigResourceType.TOPIC: admin_pb2.CONFIG_RESOURCE_TYPE_TOPIC,
    ConfigResourceType.BROKER: admin_pb2.CONFIG_RESOURCE_TYPE_BROKER,
    ConfigResourceType.CLUSTER: admin_pb2.CONFIG_RESOURCE_TYPE_CLUSTER,
    ConfigResourceType.GROUP: admin_pb2.CONFIG_RESOURCE_TYPE_GROUP,
}
_SOURCES: Final = {
    admin_pb2.CONFIG_SOURCE_DEFAULT: ConfigSource.DEFAULT,
    admin_pb2.CONFIG_SOURCE_TOPIC: ConfigSource.TOPIC,
    admin_pb2.CONFIG_SOURCE_BROKER: ConfigSource.BROKER,
    admin_pb2.CONFIG_SOURCE_CLUSTER: ConfigSource.CLUSTER,
    admin_pb2.CONFIG_SOURCE_GROUP: ConfigSource.GROUP,
}


async def alter_configs(
    calls: AdminCalls,
    changes: Mapping[ConfigResource, Mapping[str, str | None]],
    *,
    validate_only: bool = False,
) -> None:
    """Change configs of topics, brokers, groups and the cluster. The call changes all of them or none.

    Args:
        changes: for each resource, the new value of each config; None removes the value that was set.
        validate_only: check the request without changing anything.

    Raises:
        UsageError: a key is not a `ConfigResource`, or a value is neither a string nor None.
        UnknownTopicError: a topic does not exist.
        InvalidRequestError: the resource has no such config, or the value is not allowed; the message says what is.
        OutcomeUnknownError: the answer was lost. Describe the configs to find out.
    """
    request = admin_pb2.AlterConfigsRequest(
        resources=[
            admin_pb2.ResourceConfigChanges(
                resource=_resource(resource),
                changes=[admin_pb2.ConfigChange(name=name, value=_text(name, value)) for name, value in named.items()],
            )
            for resource, named in changes.items()
        ],
        validate_only=validate_only,
    )
    await calls.ask(lambda stub: stub.AlterConfigs, request, may_repeat=validate_only)


async def describe_configs(
    calls: AdminCalls, resources: Sequence[ConfigResource], *, broker_id: int | None = None
) -> dict[ConfigResource, dict[str, ConfigValue]]:
    """Describe all configs of topics, brokers, groups and the cluster, with the source of each value.

    Args:
        resources: 1 to 1,000 resources.
        broker_id: for topics, the broker whose replicas the values are for; None ignores configs of single brokers.

    Raises:
        UnknownTopicError: a topic does not exist.
        InvalidRequestError: a broker does not exist.
    """
    request = admin_pb2.DescribeConfigsRequest(
        resources=[_resource(resource) for resource in resources], broker_id=broker_id
    )
    response = await calls.ask(lambda stub: stub.DescribeConfigs, request)
    return {
        resource: {entry.name: _value(entry) for entry in each.configs}
        for resource, each in zip(resources, response.resources, strict=True)
    }


def _resource(resource: object) -> admin_pb2.ConfigResource:
    if not isinstance(resource, ConfigResource):
        raise UsageError(f"name a ConfigResource, such as ConfigResource.topic('orders'), not {resource!r}")
    return admin_pb2.ConfigResource(type=_TYPES[resource.type], name=resource.name)


def _text(name: str, value: object) -> str | None:
    if value is not None and not isinstance(value, str):
        raise UsageError(f"the value of {name} is text, or None to remove it, not {value!r}")
    return value


def _value(entry: admin_pb2.ConfigEntry) -> ConfigValue:
    return ConfigValue(
        value=entry.value,
        source=_SOURCES.get(entry.source, ConfigSource.UNKNOWN),
        default=entry.default_value,
        meaning=entry.meaning,
        allowed=entry.allowed,
    )
