# SPDX-License-Identifier: Apache-2.0
"""What can be asked of the controller, and its answers.

Owns the shapes of commands, responses, refusals and decisions. Commands that go over all partitions, a slice at a time, the controller
gives to itself.
A decision is a proposal: it becomes true when its records are committed, and its response may be given only then.
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
    """First command of every leadership: writes what a new cluster needs, goes on with work that was left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBroker:
    """A broker process asks to be part of the cluster.

    Attributes:
        broker_id: node id.
        incarnation_id: random id of the process, 16 bytes.
        host: host name or address that clients use.
        port: TCP port that clients use.
        rack: rack, or None.
        log_directory_ids: ids of its log directories, 16 bytes each.
        min_feature_level: lowest feature level that it can run at, inclusive.
        max_feature_level: highest feature level that it can run at, inclusive.
        replication_port: TCP port at the host for replication; 0: not known.
        clean_stop_epoch: epoch of the registration under which it last stopped in an orderly way; None: not known.
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
    """A broker says that it lives.

    Attributes:
        broker_id: node id.
        broker_epoch: epoch of its registration.
        metadata_offset: offset (exclusive) up to which it has applied the metadata.
        want_fence: True when it asks to stay or become fenced.
        want_shutdown: True when it asks to leave in an orderly way.
        offline_log_directory_ids: those of its log directories that have failed; others are passed over.
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
    """The shell knows that a broker process is gone: its connection broke and its port refuses."""

    broker_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveBroker:
    """Ends the registration of a broker that is gone and hosts nothing. `validate_only` True: change nothing."""

    broker_id: int
    validate_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireSessions:
    """Fences the brokers that have missed their heartbeats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepCursor:
    """Where a walk over all partitions goes on.

    Attributes:
        after_topic: name of the last topic that was looked at wholly; None: none yet.
        cut_topic_id: id of the topic that was cut, if any.
        next_partition: its first partition that was not looked at.
    """

    after_topic: str | None = None
    cut_topic_id: bytes | None = None
    next_partition: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPartitions:
    """Elects leaders where the leader may not lead any more, or where there is none and one could.

    Attributes:
        cursor: where it goes on; the default starts over.
        unclean: epochs of the brokers, ascending, that were unclean when the sweep started over: at its end they have left
            all in-sync replicas where they may lack records. Set by the first slice.
    """

    cursor: SweepCursor = SweepCursor()
    unclean: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectPreferredLeaders:
    """Makes first replicas leaders again where they can. `cursor` is where it goes on; the default starts over."""

    cursor: SweepCursor = SweepCursor()


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectUncleanLeaders:
    """Elects leaders where there is none and lacking records is allowed. `cursor` is where it goes on; the default starts over."""

    cursor: SweepCursor = SweepCursor()


PERIODIC_COMMANDS: Final = (ElectPreferredLeaders, ElectUncleanLeaders)
"""Begun at intervals. Nothing waits for them: a sweep, which gives partitions leaders, goes first."""


class ElectionKind(Enum):
    """Elections that can be asked for; clean ones happen by themselves."""

    PREFERRED = "preferred"
    """The first replica leads again."""
    UNCLEAN = "unclean"
    """Where nobody who has everything committed can lead, a replica leads that may lack some of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionTarget:
    """Partitions of a topic, by number; None: all that it has."""

    topic: str
    partitions: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectLeaders:
    """Elects leaders of some partitions; each is elected or refused alone. `validate_only` True: change nothing."""

    kind: ElectionKind
    targets: tuple[ElectionTarget, ...]
    validate_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrProposal:
    """In-sync replicas that a leader proposes; or, from any replica, that its own log is lost, or is there again.

    Attributes:
        topic_id: id of the topic, 16 bytes.
        partition: number, from 0.
        leader_epoch: leader epoch that the leader knows.
        partition_epoch: partition epoch that the leader knows.
        isr: (node id, broker epoch that the leader saw) of each; None: the leader does not know it.
        is_lost: True: the log of the proposer's replica does not work any more; then `isr` is empty.
        found_directory_id: the log of the proposer's replica lies in this log directory, which the partition awaits; then `isr`
            is empty. None: it says nothing of that.
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
    """A broker proposes in-sync replicas for partitions that it leads, or withdraws replicas whose log is lost."""

    broker_id: int
    broker_epoch: int
    proposals: tuple[IsrProposal, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LedPartition:
    """A partition that a broker leads.

    Attributes:
        topic_id: id of the topic, 16 bytes.
        partition: number, from 0.
        leader_epoch: the leader epoch in which it leads.
        allow_eligible: True: an eligible replica will do where no other in-sync one may lead.
        needs_room: True: the next leader has to have room for appends of clients.
    """

    topic_id: bytes
    partition: int
    leader_epoch: int
    allow_eligible: bool = False
    needs_room: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ResignLeadership:
    """A broker gives up the leadership of partitions that it should not serve for now; it stays in sync."""

    broker_id: int
    broker_epoch: int
    partitions: tuple[LedPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reassignment:
    """Other replicas for a partition, the preferred leader first; None cancels the reassignment that is under way."""

    topic: str
    partition: int
    replicas: tuple[int, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReassignPartitions:
    """Begins, changes or cancels reassignments. `validate_only` True: check and change nothing."""

    reassignments: tuple[Reassignment, ...]
    validate_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopic:
    """Creates a topic.

    Attributes:
        topic: name.
        topic_id: random id for it, 16 bytes; drawn by the shell, because the core has no randomness.
        partition_count: number of partitions; 0 means 1.
        replication_factor: replicas of each partition; 0 means the default.
        configs: configs that differ from the defaults.
        validate_only: True to check and change nothing.
        placement_seed: random number that decides among equally good places; drawn by the shell.
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
        partition_count: number of partitions that it is to have, more than it has.
        validate_only: True to check and change nothing.
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
        name: name of the topic, id of the broker in decimal, empty for the cluster.
        changes: (name, new value) of each config; None removes what was set, so that the inherited value holds.
    """

    resource: ConfigResource
    name: str
    changes: tuple[tuple[str, str | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterConfigs:
    """Changes configs, all or none of them. `validate_only` True: check and change nothing."""

    resources: tuple[ResourceChanges, ...]
    validate_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class VoterLevels:
    """Feature levels at which one voter can run, by its own word.

    Attributes:
        node_id: node id.
        min_level: lowest, inclusive; None: it has not said yet, or is not there.
        max_level: highest, inclusive; None together with the other.
    """

    node_id: int
    min_level: int | None
    max_level: int | None

    @property
    def is_known(self) -> bool:
        """Whether it has said."""
        return self.min_level is not None and self.max_level is not None

    def has(self, level: int) -> bool:
        """Whether it is known to be able to run at this level."""
        return self.min_level is not None and self.max_level is not None and self.min_level <= level <= self.max_level


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateFeatureLevel:
    """Raises the feature level of the cluster. `validate_only` True: check and change nothing. `voters`: of the quorum, as of now."""

    level: int
    validate_only: bool = False
    voters: tuple[VoterLevels, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateProducerIds:
    """Gives a block of producer ids to a broker."""

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
    """Carried out; there is nothing to say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistered:
    """Registered. `broker_epoch` None means the offset of the decision's first record."""

    broker_epoch: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatAnswered:
    """What the controller thinks of the broker; the fields are those of `HeartbeatResponse`."""

    fenced: bool
    caught_up: bool
    should_shutdown: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicCreated:
    """Created, or checked only, with the configs that the topic has of its own."""

    topic: str
    topic_id: bytes
    partitions: tuple[PartitionImage, ...]
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsCreated:
    """Created, or checked only; `partitions` are the new ones, ascending."""

    topic: str
    topic_id: bytes
    partitions: tuple[PartitionImage, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDeleted:
    """Deleted; `topic_id` is the id that it had."""

    topic_id: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdsAllocated:
    """The ids from `first_producer_id` (inclusive) on, `count` of them, belong to the broker alone."""

    first_producer_id: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsAltered:
    """One result for each proposal or reassignment, in order: the partition as it is from here on, or why it was refused.

    `before` has, for reassignments, the partitions as they were; None for one that is not known.
    """

    results: tuple[PartitionImage | Refusal, ...]
    before: tuple[PartitionImage | None, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadershipResigned:
    """One result for each partition, in the order of the command: it as it is from here on, or why nobody else leads it."""

    results: tuple[PartitionImage | Refusal, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionResult:
    """What an election came to.

    Attributes:
        topic: topic name.
        partition: partition, from 0.
        outcome: the partition as it is from here on, or why nobody was elected.
        elected: True when it got another leader; False also when nothing had to change.
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
    """The command is refused; nothing changes. `message` says what to do."""

    code: ErrorCode
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """A broker was heard of: soft state, handed back to the controller whatever becomes of the records."""

    broker_id: int
    broker_epoch: int | None
    metadata_offset: int
    lacks_room: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Answer of the core to a command.

    Attributes:
        response: what to answer once `records` are committed; a refusal has no records.
        records: records to append as one batch.
        heard: sign of life of a broker, or None.
        then: command to decide next (the following slice of a long work), or None.
    """

    response: Response | Refusal
    records: tuple[MetadataRecord, ...] = ()
    heard: Heard | None = None
    then: Command | None = None


def refuse(code: ErrorCode, message: str) -> Decision:
    """Return a decision that refuses."""
    return Decision(response=Refusal(code=code, message=message))
