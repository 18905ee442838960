# SPDX-License-Identifier: Apache-2.0
"""What users see of configs; public as `lograft.types`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class ConfigResourceType(Enum):
    """What configs are set for. A topic's value holds before its broker's, that before the cluster's, then the default."""

    TOPIC = "topic"
    BROKER = "broker"
    CLUSTER = "cluster"


class ConfigResource(NamedTuple):
    """A topic, a broker or the cluster. `name` is the topic, the broker's id in decimal, empty for the cluster."""

    type: ConfigResourceType
    name: str = ""

    @classmethod
    def topic(cls, topic: str) -> ConfigResource:
        """A topic."""
        return cls(ConfigResourceType.TOPIC, topic)

    @classmethod
    def broker(cls, broker_id: int) -> ConfigResource:
        """A broker: what its replicas of all topics inherit."""
        return cls(ConfigResourceType.BROKER, str(broker_id))

    @classmethod
    def cluster(cls) -> ConfigResource:
        """The cluster: what all topics inherit."""
        return cls(ConfigResourceType.CLUSTER)


class ConfigSource(Enum):
    """Where the value of a config comes from."""

    UNKNOWN = "unknown"
    """Said by a server that is newer than this client."""
    DEFAULT = "default"
    TOPIC = "topic"
    BROKER = "broker"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigValue:
    """A config of a resource.

    Attributes:
        value: the value that holds.
        source: where it comes from.
        default: value that holds when nothing is set.
        meaning: what it is for.
        allowed: what a value must be, in words.
    """

    value: str
    source: ConfigSource
    default: str
    meaning: str
    allowed: str
