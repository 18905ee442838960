# SPDX-License-Identifier: Apache-2.0
"""What can be wrong with a cluster beyond its partitions: addresses, clocks, versions, quorum, disks. Pure.

`lograft doctor` gathers the facts: what the controller says, and what a probe of each broker from here found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from lograft.types import (
    BrokerState,
    BrokerStatus,
    FeatureLevelDescription,
    LogDirectories,
    LogDirectoryState,
    TopicSummary,
)
from lograft.types import QuorumDescription as Quorum

MAX_CLOCK_DIFFERENCE_MS: Final = 1_000
"""Milliseconds that the clock of a broker may differ from the one here. Retention by age and times of records need no more."""

MAX_FETCH_AGE_MS: Final = 10_000
"""Milliseconds without a fetch after which a voter counts as away."""


INTERNAL_REPLICAS: Final = 3
"""Replicas that an internal topic should have where there are as many brokers."""

STAGING_PREFIX: Final = "__staging-"
"""Begin of the names of staging topics of ingests."""


class Check(StrEnum):
    """A subject of the examination."""

    ADDRESSES = "addresses"
    CLOCKS = "clocks"
    VERSIONS = "versions"
    QUORUM = "quorum"
    PARTITIONS = "partitions"
    DISKS = "disks"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that is wrong, or worth a look.

    Attributes:
        check: the subject.
        what: which thing it is, and what is wrong with it.
        reason: the facts.
        advice: what an operator can do.
        is_note: True if it does no harm by itself.
    """

    check: Check
    what: str
    reason: str
    advice: str
    is_note: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerProbe:
    """What came of asking a broker at the address that it advertises.

    Attributes:
        broker_id: the broker that should be there.
        address: "host:port".
        failure: why it gave no answer; None: it did.
        directories: the answer.
        asked_ms: wall clock here before the question, in milliseconds since 1970-01-01 UTC.
        answered_ms: wall clock here after the answer.
    """

    broker_id: int
    address: str
    failure: str | None = None
    directories: LogDirectories | None = None
    asked_ms: int = 0
    answered_ms: int = 0

    @property
    def clock_difference_ms(self) -> int | None:
        """How far the broker's clock is ahead of the one here; None: not known."""
        if self.directories is None or self.directories.wall_clock_ms is None:
            return None
        return self.directories.wall_clock_ms - (self.asked_ms + self.answered_ms) // 2

    @property
    def clock_uncertainty_ms(self) -> int:
        """How far the difference may be wrong: half the time of the question and its answer."""
        return (self.answered_ms - self.asked_ms + 1) // 2


def no_controller(reason: str) -> Finding:
    """Return that the active controller does not answer."""
    return Finding(
        check=Check.QUORUM,
        what="the active controller does not answer",
        reason=reason,
        advice="start voters until most of them run; until then no topic, leader or config can change",
    )


def address_findings(brokers: Sequence[BrokerStatus], probes: Sequence[BrokerProbe]) -> list[Finding]:
    """Return the brokers that are not in service, or not to be found at the address that clients get."""
    found = [
        Finding(
            check=Check.ADDRESSES,
            what=f"broker {each.broker_id} is {each.state.value}",
            reason=f"it does not lead any partition; the controller last heard of it {_ago(each.last_heard_age_ms)}",
            advice=f"start it, or if it is gone for good: lograft brokers remove {each.broker_id}",
        )
        for each in brokers
        if each.state is not BrokerState.ACTIVE
    ]
    told = {each.broker_id for each in brokers if each.state is not BrokerState.ACTIVE}
    for probe in probes:
        if probe.failure is not None and probe.broker_id not in told:
            found.append(
                Finding(
                    check=Check.ADDRESSES,
                    what=f"broker {probe.broker_id} cannot be reached at {probe.address}",
                    reason=f"{probe.failure}"
                    + ("; the controller hears from it, so only the way from here fails" if brokers else ""),
                    advice="clients use this address: set brokerd's --advertise to one that they reach, or open the way",
                )
            )
        if probe.directories is not None and probe.directories.broker_id != probe.broker_id:
            found.append(
                Finding(
                    check=Check.ADDRESSES,
                    what=f"broker {probe.directories.broker_id} answers at the address of broker {probe.broker_id}",
                    reason=f"{probe.address} leads from here to another broker than the cluster says",
                    advice="give each broker an address of its own with brokerd's --advertise",
                )
            )
    return found


def clock_findings(probes: Sequence[BrokerProbe]) -> list[Finding]:
    """Return the brokers whose clocks differ from the one here."""
    return [
        Finding(
            check=Check.CLOCKS,
            what=f"the clock of broker {each.broker_id} is {abs(difference)} ms {'ahead' if difference > 0 else 'behind'}",
            reason=f"compared with this machine's, to {each.clock_uncertainty_ms} ms; {MAX_CLOCK_DIFFERENCE_MS} ms are allowed",
            advice="keep the clocks of all machines right with NTP; retention by age and times of records depend on them",
        )
        for each in probes
        if (difference := each.clock_difference_ms) is not None
        and abs(difference) - each.clock_uncertainty_ms > MAX_CLOCK_DIFFERENCE_MS
    ]


def version_findings(own_version: str, levels: FeatureLevelDescription, probes: Sequence[BrokerProbe]) -> list[Finding]:
    """Return notes of different versions, and of a feature level that could be raised."""
    versions: dict[str, list[int]] = {}
    for each in probes:
        if each.directories is not None and each.directories.software_version:
            versions.setdefault(each.directories.software_version, []).append(each.broker_id)
    found: list[Finding] = []
    if len(versions) > 1:
        shown = "; ".join(f"{version}: {_ids(ids)}" for version, ids in sorted(versions.items()))
        found.append(
            Finding(
                check=Check.VERSIONS,
                what="the brokers have different versions",
                reason=shown,
                advice="ordinary during an upgrade; then upgrade the others, too",
                is_note=True,
            )
        )
    elif versions and own_version not in versions:
        (version,) = versions
        found.append(
            Finding(
                check=Check.VERSIONS,
                what="this client has another version than the brokers",
                reason=f"client {own_version}, brokers {version}",
                advice="clients and brokers of neighbouring versions understand each other; nothing must be done",
                is_note=True,
            )
        )
    possible = min([levels.controller_max_level, *(highest for _, highest in levels.brokers.values())])
    if possible > levels.level:
        found.append(
            Finding(
                check=Check.VERSIONS,
                what=f"the cluster runs at feature level {levels.level} and could run at {possible}",
                reason="all servers know the higher level",
                advice=f"when no server will go back to an older version: lograft features upgrade {possible}",
                is_note=True,
            )
        )
    return found


def quorum_findings(quorum: Quorum) -> list[Finding]:
    """Return voters that are away, and a quorum without a leader."""
    if quorum.leader_id is None:
        return [
            Finding(
                check=Check.QUORUM,
                what="the metadata quorum has no leader",
                reason=f"voters: {_ids([each.node_id for each in quorum.voters])}",
                advice="start voters until most of them run; until then no topic, leader or config can change",
            )
        ]
    away = [
        each
        for each in quorum.voters
        if each.node_id != quorum.leader_id
        and (each.last_fetch_age_ms is None or each.last_fetch_age_ms > MAX_FETCH_AGE_MS)
    ]
    left = len(quorum.voters) - len(away) - (len(quorum.voters) // 2 + 1)
    return [
        Finding(
            check=Check.QUORUM,
            what=f"voter {each.node_id} of the metadata quorum is away",
            reason=f"it last fetched {_ago(each.last_fetch_age_ms)}; the quorum stops when {max(left, 0) + 1} more are away",
            advice=f"start node {each.node_id}; after a lost disk: lograft quorum replace-voter {each.node_id}",
        )
        for each in away
    ]


def internal_topic_findings(topics: Sequence[TopicSummary], broker_count: int) -> list[Finding]:
    """Return notes of internal topics that were made when fewer brokers were registered.

    Staging topics are left out: they have the replicas of their topics, and nobody reassigns them.

    Args:
        topics: all topics.
        broker_count: number of registered brokers.
    """
    wanted = min(INTERNAL_REPLICAS, broker_count)
    return [
        Finding(
            check=Check.PARTITIONS,
            what=f"internal topic {each.topic} could have more replicas",
            reason=f"it has {each.replication_factor} of each partition, because fewer brokers were there when it was made; "
            f"now there are {broker_count}",
            advice=f"lograft partitions reassign {each.topic} --to {','.join(['ID'] * wanted)}, then "
            f"lograft configs set --topic {each.topic} min.insync.replicas={wanted - 1}",
            is_note=True,
        )
        for each in topics
        if each.is_internal and not each.topic.startswith(STAGING_PREFIX) and each.replication_factor < wanted
    ]


def disk_findings(probes: Sequence[BrokerProbe]) -> list[Finding]:
    """Return log directories that are failed or have too little room, and stray partitions."""
    found: list[Finding] = []
    for probe in probes:
        if probe.directories is None:
            continue
        broker_id = probe.directories.broker_id
        for each in probe.directories.directories:
            where = f"{each.path} of broker {broker_id}"
            if each.state is LogDirectoryState.FAILED:
                found.append(
                    Finding(
                        check=Check.DISKS,
                        what=f"the disk of {where} failed",
                        reason=each.problem or "the broker does not say why",
                        advice="repair the disk and restart the broker",
                    )
                )
            elif each.state in (LogDirectoryState.TIGHT, LogDirectoryState.FULL):
                found.append(
                    Finding(
                        check=Check.DISKS,
                        what=f"{where} is {each.state.value}",
                        reason=f"{each.free_bytes if each.free_bytes is not None else 'unknown'} bytes are free; "
                        "the broker refuses appends, and goes on with reads and deletes",
                        advice="lower retention.ms or retention.bytes, delete topics, move replicas, or add room",
                    )
                )
            if each.unknown_partition_count:
                found.append(
                    Finding(
                        check=Check.DISKS,
                        what=f"{where} has directories of partitions that the cluster does not know",
                        reason=f"{each.unknown_partition_count}, with {each.unknown_partition_bytes} bytes",
                        advice="the broker deletes them after seven days; at once: "
                        f"lograft directories delete-unknown --broker {broker_id}",
                        is_note=True,
                    )
                )
    return found


def _ago(age_ms: int | None) -> str:
    return "never" if age_ms is None else f"{age_ms} ms ago" if age_ms < 10_000 else f"{age_ms // 1000} s ago"


def _ids(ids: Sequence[int]) -> str:
    return ", ".join(map(str, sorted(ids))) or "none"
