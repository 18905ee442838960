# SPDX-License-Identifier: Apache-2.0
"""The configs of consumer groups: names, bounds, and the settings that follow from them.

Owns the bounds of the sessions of groups; the coordinators take them from here. A group inherits from the cluster what it has not set
itself. `topic_configs` has the table with the definitions. Does not know how coordinators use them.

Law: the settings of a group are always consistent. A session that the cluster shortens also shortens the heartbeat interval of groups
that have a longer one of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from metaquorum.metadata.topic_configs import (
    GROUP_ASSIGNMENT_INTERVAL,
    GROUP_ASSIGNOR,
    GROUP_HEARTBEAT_INTERVAL,
    GROUP_OFFSETS_RETENTION,
    GROUP_SESSION_TIMEOUT,
    OFF,
    TOPIC_CONFIGS,
)

SESSION_BEATS: Final = 3
"""Heartbeat intervals that fit into a session, at least: a lost heartbeat must not end it."""

MAX_GROUP_ID_BYTES: Final = 255
"""UTF-8 bytes of a group id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Effective settings of one group.

    Attributes:
        session_timeout_ms: milliseconds without a sign of life after which a member is removed.
        heartbeat_interval_ms: milliseconds between two heartbeats, at most a third of the session.
        assignment_interval_ms: milliseconds for which changes are collected before a target assignment is computed.
        assignor: name of the assignor for members that prefer none.
        offsets_retention_ms: milliseconds that offsets of a group without members are kept; None: for ever.
    """

    session_timeout_ms: int
    heartbeat_interval_ms: int
    assignment_interval_ms: int
    assignor: str
    offsets_retention_ms: int | None


def group_settings(configs: Mapping[str, str]) -> GroupSettings:
    """Return the settings that follow from valid configs: the group's over those of the cluster. Others are ignored."""

    def value(name: str) -> str:
        return configs.get(name, TOPIC_CONFIGS[name].default)

    session_ms = int(value(GROUP_SESSION_TIMEOUT))
    retention = value(GROUP_OFFSETS_RETENTION)
    return GroupSettings(
        session_timeout_ms=session_ms,
        heartbeat_interval_ms=min(int(value(GROUP_HEARTBEAT_INTERVAL)), session_ms // SESSION_BEATS),
        assignment_interval_ms=int(value(GROUP_ASSIGNMENT_INTERVAL)),
        assignor=value(GROUP_ASSIGNOR),
        offsets_retention_ms=None if retention == OFF else int(retention),
    )


def combination_problem(configs: Mapping[str, str]) -> str | None:
    """Return why valid configs of a group or of the cluster contradict each other, or None.

    Args:
        configs: what holds for the resource: its own values over the inherited ones.
    """
    session = configs.get(GROUP_SESSION_TIMEOUT, TOPIC_CONFIGS[GROUP_SESSION_TIMEOUT].default)
    beat = configs.get(GROUP_HEARTBEAT_INTERVAL, TOPIC_CONFIGS[GROUP_HEARTBEAT_INTERVAL].default)
    if SESSION_BEATS * int(beat) <= int(session):
        return None
    return (
        f"{GROUP_HEARTBEAT_INTERVAL}={beat} is more than a third of {GROUP_SESSION_TIMEOUT}={session}; "
        "set both in one request"
    )


def group_id_problem(group_id: str) -> str | None:
    """Return why a text is no group id, or None if it is."""
    size_bytes = len(group_id.encode())
    if 1 <= size_bytes <= MAX_GROUP_ID_BYTES:
        return None
    return f"a group id has 1 to {MAX_GROUP_ID_BYTES} bytes, this one has {size_bytes}"
