# SPDX-License-Identifier: Apache-2.0
"""Commands of the controller, and its responses.

Owns the types of commands, responses, refusals and decisions. Commands that scan all partitions, a slice at a time, come from the
controller itself. A decision is a proposal: it becomes true when its records are committed, and only then may its response be given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from lograft.wire.codes import ErrorCode

from metaquorum.metadata.records import ConfigResource, MetadataRecord
from metaquorum.metadata.state import PartitionImage


@dataclass(frozen=True, slots=True, kw_only=True)
class Bootstrap:
    """First command of every leadership: writes the records that a new cluster needs, and continues unfinished work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBroker:
    """Registers a broker process.

    Attributes:
        broker_id: node id.
        incarnation_id: random id of the process, 16 bytes.
        host: host name or address that clients use.
        port: TCP port that clients use.
        rack: rack, or None.
        log_directory_ids: ids of its log directories, 16 bytes each.
        min_feature_level: lowest feature level that it supports, inclusive.
        max_feature_level: highest feature level that it supports, inclusive.
        replication_port: TCP port at the host for replication; 0: unknown.
        clean_stop_epoch: epoch of the registration under which its last clean shutdown was; None: unknown.
    """

    broker_id: int
    incarnation_id: bytes
    host: str
    port: int
    rack: str | None = None
    log_directory_ids: tuple[bytes, ...] = ()
    min_feature_level: int = 1
    max_feature_level: int = 1
    replication_port: int = 0
    clean_stop_epoch: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """A broker reports that it is alive.

    Attributes:
        broker_id: node id.
        broker_epoch: epoch of its registration.
        metadata_offset: offset (exclusive) up to which it has applied the metadata.
        want_fence: True if it asks to stay or become fenced.
        want_shutdown: True if it asks for a controlled shutdown.
        offline_log_directory_ids: log directories of the broker that have failed; ids that it did not register are ignored.
        lacks_room: True while one of its log directories has too little room for appends of clients.
    """

    broker_id: int
    broker_epoch: int
    metadata_offset: int
    want_fence: bool = False
    want_shutdown: bool = False
    lacks_room: bool = False
    offline_log_directory_ids: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceBroker:
    """Fences a broker whose process is gone: its connection ended and its port refuses."""

    broker_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveBroker:
    """Ends the registration of a broker that is gone and hosts no replica. `validate_only` True: change nothing."""

    broker_id: int
    validate_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireSessions:
    """Fences the brokers whose sessions are over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepCursor:
    """The position at which a scan over all partitions continues.

    Attributes:
        after_topic: name of the last topic that was scanned completely; None: none yet.
        cut_topic_id: id of the topic in which the last slice ended, if any.
        next_partition: first partition of that topic that was not examined.
    """

    after_topic: str | None = None
    cut_topic_id: bytes | None = None
    next_partition: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPartitions:
    """Elects leaders where the leader may no longer lead, or where there is none and a replica may lead.

    Attributes:
        cursor: where the sweep continues; the default starts a new sweep.
        unclean: epochs of the brokers that were unclean at the start of the sweep, ascending. At its end they have left the ISR
            wherever they may lack records. The first slice sets it.
    """

    cursor: SweepCursor = SweepCursor()
    unclean: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectPreferredLeaders:
    """Makes first replicas leaders again where they can lead. `cursor` is where it continues; the default starts a new scan."""

    cursor: SweepCursor = SweepCursor()


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectUncleanLeaders:
    """Elects leaders where none exists and an unclean one is allowed. `cursor` is where it continues; the default starts a new scan."""

    cursor: SweepCursor = SweepCursor()


PERIODIC_COMMANDS: Final = (ElectPreferredLeaders, ElectUncleanLeaders)
"""Commands that are started at intervals. No caller waits for them, so sweeps, which elect leaders, have priority."""


class ElectionKind(Enum):
    """Elections on request. Clean elections happen by themselves."""

    PREFERRED = "preferred"
    """The first replica leads again."""
    UNCLEAN = "unclean"
    """Only if no replica with everything committed may lead: elect a replica that may lack committed records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionTarget:
    """Partitions of a topic, by number; None means all of them."""

    topic: str
    partitions: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectLeaders:
    """Elects leaders of some partitions, each separately. `validate_only` True: change nothing."""

    kind: ElectionKind
    targets: tuple[ElectionTarget, ...]
    validate_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrProposal:
    """In-sync replicas that a leader proposes, or a report of any replica that its own log is lost or found again.

    Attributes:
        topic_id: id of the topic, 16 bytes.
        partition: number, from 0.
        leader_epoch: leader epoch that the broker knows.
        partition_epoch: partition epoch that the broker knows.
        isr: (node id, broker epoch that the leader saw) of each member; None if the leader does not know the epoch.
        is_lost: True: the log of the broker's replica does not work any more; `isr` is then empty.
        found_directory_id: awaited log directory in which the log of the broker's replica was found; `isr` is then empty. None: no
            such report.
    """

    topic_id: bytes
    partition: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[int, int | None], ...]
    is_lost: bool = False
    found_directory_id: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartition:
    """A broker proposes in-sync replicas for partitions that it leads, or reports replicas whose log is lost or found."""

    broker_id: int
    broker_epoch: int
    proposals: tuple[IsrProposal, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LedPartition:
    """A partition that a broker leads.

    Attributes:
        topic_id: id of the topic, 16 bytes.
        partition: number, from 0.
        leader_epoch: leader epoch in which the broker leads.
        allow_eligible: True: an eligible replica may take over if no other in-sync one may lead.
        needs_room: True: the next leader must have room for appends of clients.
    """

    topic_id: bytes
    partition: int
    leader_epoch: int
    allow_eligible: bool = False
    needs_room: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ResignLeadership:
    """A broker resigns the leadership of partitions that it should not serve for now. It stays in sync."""

    broker_id: int
    broker_epoch: int
    partitions: tuple[LedPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reassignment:
    """New replicas of a partition, the preferred leader first. None cancels the reassignment under way."""

    topic: str
    partition: int
    replicas: tuple[int, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReassignPartitions:
    """Starts, changes or cancels reassignments. `validate_only` True: change nothing."""

    reassignments: tuple[Reassignment, ...]
    validate_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopic:
    """Creates a topic.

    Attributes:
        topic: name.
        topic_id: random id, 16 bytes; the shell draws it, because the core has no randomness.
        partition_count: number of partitions; 0 means 1.
        replication_factor: replicas of each partition; 0 means the default.
        configs: configs that differ from the defaults.
        validate_only: True: change nothing.
        placement_seed: random number that decides among equally good placements; the shell draws it.
    """

    topic: str
    topic_id: bytes
    partition_count: int
    replication_factor: int
    configs: Mapping[str, str]
    validate_only: bool = False
    placement_seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePartitions:
    """Adds partitions to a topic.

    Attributes:
        topic: name.
        partition_count: new number of partitions, larger than the current one.
        validate_only: True: change nothing.
        placement_seed: see `CreateTopic`.
    """

    topic: str
    partition_count: int
    validate_only: bool = False
    placement_seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopic:
    """Deletes a topic."""

    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceChanges:
    """Changes of the configs of one resource.

    Attributes:
        resource: kind of the resource.
        name: name of the topic, id of the broker in decimal, id of the group, or empty for the cluster.
        changes: (name, new value) of each config; None removes the value, so that the inherited one applies.
    """

    resource: ConfigResource
    name: str
    changes: tuple[tuple[str, str | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterConfigs:
    """Changes configs, all or none of them. `validate_only` True: change nothing."""

    resources: tuple[ResourceChanges, ...]
    validate_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class VoterLevels:
    """Feature levels that one voter reports to support.

    Attributes:
        node_id: node id.
        min_level: lowest level, inclusive; None if the voter has not reported yet.
        max_level: highest level, inclusive; None together with `min_level`.
    """

    node_id: int
    min_level: int | None
    max_level: int | None

    @property
    def is_known(self) -> bool:
        """True if the voter has reported."""
        return self.min_level is not None and self.max_level is not None

    def has(self, level: int) -> bool:
        """Return whether the voter is known to support this level."""
        return self.min_level is not None and self.max_level is not None and self.min_level <= level <= self.max_level


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateFeatureLevel:
    """Raises the feature level of the cluster. `validate_only` True: change nothing. `voters`: the voters of the quorum now."""

    level: int
    validate_only: bool = False
    voters: tuple[VoterLevels, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateProducerIds:
    """Allocates a block of producer ids to a broker."""

    broker_id: int
    broker_epoch: int


Command = (
    Bootstrap
    | RegisterBroker
    | Heartbeat
    | FenceBroker
    | RemoveBroker
    | ExpireSessions
    | SweepPartitions
    | ElectPreferredLeaders
    | ElectUncleanLeaders
    | ElectLeaders
    | AlterPartition
    | ResignLeadership
    | ReassignPartitions
    | CreateTopic
    | CreatePartitions
    | DeleteTopic
    | AlterConfigs
    | UpdateFeatureLevel
    | AllocateProducerIds
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The command was carried out; the response has no content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistered:
    """The broker is registered. `broker_epoch` None means the offset of the decision's first record."""

    broker_epoch: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatAnswered:
    """The controller's view of the broker; the fields are those of `HeartbeatResponse`."""

    fenced: bool
    caught_up: bool
    should_shutdown: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicCreated:
    """The topic was created or validated; `configs` are those set for the topic itself."""

    topic: str
    topic_id: bytes
    partitions: tuple[PartitionImage, ...]
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsCreated:
    """The partitions were created or validated; `partitions` are the new ones, ascending."""

    topic: str
    topic_id: bytes
    partitions: tuple[PartitionImage, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDeleted:
    """The topic was deleted; `topic_id` is the id that it had."""

    topic_id: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdsAllocated:
    """The `count` ids from `first_producer_id` (inclusive) on belong to this broker alone."""

    first_producer_id: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsAltered:
    """One result for each proposal or reassignment, in order: the partition's new state, or the refusal.

    For reassignments `before` has the states before the command; None for an unknown partition.
    """

    results: tuple[PartitionImage | Refusal, ...]
    before: tuple[PartitionImage | None, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadershipResigned:
    """One result for each partition, in the order of the command: its new state, or why no other replica leads it."""

    results: tuple[PartitionImage | Refusal, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionResult:
    """Result of one election.

    Attributes:
        topic: topic name.
        partition: partition, from 0.
        outcome: the partition's new state, or why no leader was elected.
        elected: True if the partition got another leader; False also if nothing had to change.
    """

    topic: str
    partition: int
    outcome: PartitionImage | Refusal
    elected: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadersElected:
    """One result for each partition, in the order of the command."""

    results: tuple[ElectionResult, ...]


Response = (
    Done
    | BrokerRegistered
    | HeartbeatAnswered
    | TopicCreated
    | PartitionsCreated
    | PartitionsAltered
    | LeadershipResigned
    | LeadersElected
    | TopicDeleted
    | ProducerIdsAllocated
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """The command is refused and nothing changes. `message` says what to do."""

    code: ErrorCode
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """A sign of life of a broker: soft state that the shell hands back to the controller, whether records commit or not."""

    broker_id: int
    broker_epoch: int | None
    metadata_offset: int
    lacks_room: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The core's answer to a command.

    Attributes:
        response: response to give once `records` are committed; a refusal has no records.
        records: records to append as one batch.
        heard: sign of life of a broker, or None.
        then: command to decide next (the following slice of long work), or None.
    """

    response: Response | Refusal
    records: tuple[MetadataRecord, ...] = ()
    heard: Heard | None = None
    then: Command | None = None


def refuse(code: ErrorCode, message: str) -> Decision:
    """Return a decision that refuses the command."""
    return Decision(response=Refusal(code=code, message=message))
