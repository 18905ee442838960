# SPDX-License-Identifier: Apache-2.0
"""The calls about configs, for the admin clients.

Owns turning the user's values into requests and answers into the user's values. Must not hold state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from lograft._client.cluster import Cluster
from lograft.errors import UsageError
from lograft.types import ConfigResource, ConfigResourceType, ConfigSource, ConfigValue
from lograft.v1 import admin_pb2
from lograft.v1.admin_pb2_grpc import AdminServiceStub

_TYPES: Final = {
    ConfigResourceType.TOPIC: admin_pb2.CONFIG_RESOURCE_TYPE_TOPIC,
    ConfigResourceType.BROKER: admin_pb2.CONFIG_RESOURCE_TYPE_BROKER,
    ConfigResourceType.CLUSTER: admin_pb2.CONFIG_RESOURCE_TYPE_CLUSTER,
}
_SOURCES: Final = {
    admin_pb2.CONFIG_SOURCE_DEFAULT: ConfigSource.DEFAULT,
    admin_pb2.CONFIG_SOURCE_TOPIC: ConfigSource.TOPIC,
    admin_pb2.CONFIG_SOURCE_BROKER: ConfigSource.BROKER,
    admin_pb2.CONFIG_SOURCE_CLUSTER: ConfigSource.CLUSTER,
}


async def alter_configs(
    cluster: Cluster,
    changes: Mapping[ConfigResource, Mapping[str, str | None]],
    *,
    validate_only: bool,
    timeout_ms: int,
) -> None:
    """Change configs; returns when the broker that was asked shows them.

    Raises:
        UsageError: a key is no ConfigResource, or a value is neither text nor None.
        LograftError: refused as a whole, or no answer came.
    """
    request = admin_pb2.AlterConfigsRequest(
        cluster_id=cluster.cluster_id,
        resources=[
            admin_pb2.ResourceConfigChanges(
                resource=_resource(resource),
                changes=[admin_pb2.ConfigChange(name=name, value=_text(name, value)) for name, value in named.items()],
            )
            for resource, named in changes.items()
        ],
        validate_only=validate_only,
    )
    await cluster.ask(
        lambda channel: AdminServiceStub(channel).AlterConfigs, request, timeout_ms=timeout_ms, may_repeat=validate_only
    )


async def describe_configs(
    cluster: Cluster, resources: Sequence[ConfigResource], *, broker_id: int | None, timeout_ms: int
) -> dict[ConfigResource, dict[str, ConfigValue]]:
    """Describe all configs of resources.

    Raises:
        UsageError: one is no ConfigResource.
        LograftError: there is no such resource, or no answer came.
    """
    request = admin_pb2.DescribeConfigsRequest(
        cluster_id=cluster.cluster_id, resources=[_resource(resource) for resource in resources], broker_id=broker_id
    )
    response = await cluster.ask(
        lambda channel: AdminServiceStub(channel).DescribeConfigs, request, timeout_ms=timeout_ms
    )
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
