# SPDX-License-Identifier: Apache-2.0
"""Configs of one group, within their limits. They belong to the cluster's metadata and are handed in.

`config_of` makes them of the values that the metadata has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from brokerd.groups.limits import (
    DEFAULT_ASSIGNMENT_INTERVAL_MS,
    DEFAULT_HEARTBEAT_INTERVAL_MS,
    DEFAULT_OFFSETS_RETENTION_MS,
    DEFAULT_SESSION_TIMEOUT_MS,
)
from metaquorum.metadata.group_configs import SESSION_BEATS, group_settings
from metaquorum.metadata.topic_configs import (
    GROUP_ASSIGNMENT_INTERVAL,
    GROUP_HEARTBEAT_INTERVAL,
    GROUP_OFFSETS_RETENTION,
    GROUP_SESSION_TIMEOUT,
    MAX_ASSIGNMENT_INTERVAL_MS,
    MAX_SESSION_TIMEOUT_MS,
    MIN_HEARTBEAT_INTERVAL_MS,
    MIN_OFFSETS_RETENTION_MS,
    MIN_SESSION_TIMEOUT_MS,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """Configs of a group.

    Attributes:
        session_timeout_ms: milliseconds without a sign of life after which a member is removed.
        heartbeat_interval_ms: milliseconds between two beats that members are told to keep.
        assignment_interval_ms: milliseconds for which changes are collected before a target is computed.
        assignor: name of the assignor for members that prefer none; empty: the coordinator's default.
        offsets_retention_ms: milliseconds that offsets of a group without members are kept; None: for ever.

    Raises:
        ValueError: a value is out of range; the text names it and the range.
    """

    session_timeout_ms: int = DEFAULT_SESSION_TIMEOUT_MS
    heartbeat_interval_ms: int = DEFAULT_HEARTBEAT_INTERVAL_MS
    assignment_interval_ms: int = DEFAULT_ASSIGNMENT_INTERVAL_MS
    assignor: str = ""
    offsets_retention_ms: int | None = DEFAULT_OFFSETS_RETENTION_MS

    def __post_init__(self) -> None:
        _check(GROUP_SESSION_TIMEOUT, self.session_timeout_ms, MIN_SESSION_TIMEOUT_MS, MAX_SESSION_TIMEOUT_MS)
        longest_beat_ms = self.session_timeout_ms // SESSION_BEATS
        _check(GROUP_HEARTBEAT_INTERVAL, self.heartbeat_interval_ms, MIN_HEARTBEAT_INTERVAL_MS, longest_beat_ms)
        _check(GROUP_ASSIGNMENT_INTERVAL, self.assignment_interval_ms, 0, MAX_ASSIGNMENT_INTERVAL_MS)
        retention_ms = self.offsets_retention_ms
        if retention_ms is not None and retention_ms < MIN_OFFSETS_RETENTION_MS:
            raise ValueError(
                f"{GROUP_OFFSETS_RETENTION} is {retention_ms} ms: use {MIN_OFFSETS_RETENTION_MS} ms or more, or never"
            )


def config_of(configs: Mapping[str, str]) -> GroupConfig:
    """Return the config that follows from values of the metadata: those of the group over those of the cluster."""
    found = group_settings(configs)
    return GroupConfig(
        session_timeout_ms=found.session_timeout_ms,
        heartbeat_interval_ms=found.heartbeat_interval_ms,
        assignment_interval_ms=found.assignment_interval_ms,
        assignor=found.assignor,
        offsets_retention_ms=found.offsets_retention_ms,
    )


def _check(name: str, value_ms: int, least_ms: int, most_ms: int) -> None:
    if not least_ms <= value_ms <= most_ms:
        raise ValueError(f"{name} is {value_ms} ms: use {least_ms} to {most_ms} ms")
