# SPDX-License-Identifier: Apache-2.0
"""Decisions about brokers: registration, heartbeats, fencing, controlled shutdown, removal and producer ids; also their states.

Owns the rules for the life of a broker. Law: one broker id belongs to one live process. Every request of a broker carries the epoch
of its registration, and an older epoch is refused. A broker is removed only when its session is over and no partition has a replica
on it, so a removal loses no record and stops no live broker.
Source: Kafka's ClusterControlManager and BrokerHeartbeatManager (KIP-631, KIP-841); KIP-746 (UnregisterBroker); `docs/controller.md`
"Brokers".
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from itertools import islice
from typing import Protocol

from lograft.wire.codes import ErrorCode

from metaquorum.controller.appended import AppendedImage
from metaquorum.controller.commands import (
    AllocateProducerIds,
    BrokerRegistered,
    Decision,
    Done,
    FenceBroker,
    Heard,
    Heartbeat,
    HeartbeatAnswered,
    ProducerIdsAllocated,
    Refusal,
    RegisterBroker,
    RemoveBroker,
    SweepPartitions,
    refuse,
)
from metaquorum.controller.sessions import Sessions
from metaquorum.controller.settings import ControllerSettings
from metaquorum.metadata.records import (
    FEATURE_LEVEL,
    FEATURE_NAME,
    MAX_NODE_ID,
    MAX_PRODUCER_ID,
    BrokerChangeRecord,
    BrokerRecord,
    ProducerIdsRecord,
    RemoveBrokerRecord,
)
from metaquorum.metadata.state import BrokerImage

ID_BYTES = 16
"""Bytes of incarnation and directory ids."""

SHOWN_PARTITIONS = 5
"""Partitions that a refusal names at most."""


def register(
    image: AppendedImage, sessions: Sessions, settings: ControllerSettings, command: RegisterBroker, now_ms: int
) -> Decision:
    """Decide about a registration.

    The same incarnation keeps its epoch. Another incarnation is refused while the registered one is unfenced, in session and not in
    controlled shutdown; otherwise it takes over the broker id and starts fenced. It is *unclean* if it cannot prove a clean shutdown
    of the registration that it replaces, or lacks one of its log directories. An unclean broker may lack records, and stays fenced
    until it has left the ISR of its partitions (`elections.py`).
    """
    refusal = _registration_problem(image, settings, command)
    if refusal is not None:
        return Decision(response=refusal)
    present = image.broker(command.broker_id)
    if present is not None and present.incarnation_id == command.incarnation_id:
        return _register_again(present, command)
    if present is not None and present.can_lead and sessions.is_live(present, now_ms):
        return refuse(
            ErrorCode.DUPLICATE_BROKER,
            f"broker {command.broker_id} is registered by another live process at {present.host}:{present.port}; "
            "stop that one, or use another node id",
        )
    lost = present is not None and _has_lost_directories(present, command)
    unclean = lost or (present is not None and (present.unclean or command.clean_stop_epoch != present.broker_epoch))
    # The sweep for an earlier unclean shutdown may not be complete: then its registration, the oldest one, counts.
    stopped = 0 if present is None or not unclean else _stopped_epoch(present)
    replaced: tuple[bytes, ...] = ()
    if present is not None and lost:
        # Until a sweep is complete, replicas are still in sync according to the directories from before the first loss.
        replaced = present.replaced_log_directory_ids or tuple(sorted(present.log_directory_ids))
    record = replace(
        _broker_record(command, broker_epoch=None, fenced=True),
        unclean=unclean,
        lost_directories=lost,
        replaced_log_directory_ids=replaced,
        replaced_broker_epoch=stopped,
    )
    return Decision(
        response=BrokerRegistered(broker_epoch=None),
        records=(record,),
        heard=Heard(broker_id=command.broker_id, broker_epoch=None, metadata_offset=0),
        # The replaced process may have led partitions, or may have lost records that count as present.
        then=SweepPartitions() if unclean or (present is not None and present.can_lead) else None,
    )


def _stopped_epoch(present: BrokerImage) -> int:
    """Return the epoch of the registration that stopped uncleanly; of several without a complete sweep, the first."""
    return present.replaced_broker_epoch if present.unclean else present.broker_epoch


def _has_lost_directories(present: BrokerImage, command: RegisterBroker) -> bool:
    """Return whether a log directory is gone, wiped or removed. The metadata does not know which partitions it had."""
    return present.lost_directories or not set(present.log_directory_ids) <= set(command.log_directory_ids)


def _register_again(present: BrokerImage, command: RegisterBroker) -> Decision:
    record = replace(
        _broker_record(command, broker_epoch=present.broker_epoch, fenced=present.fenced),
        unclean=present.unclean,
        lost_directories=present.lost_directories,
        replaced_log_directory_ids=present.replaced_log_directory_ids,
        replaced_broker_epoch=present.replaced_broker_epoch,
        offline_log_directory_ids=present.offline_log_directory_ids,
    )
    same = (record.host, record.port, record.rack) == (present.host, present.port, present.rack)
    same = same and record.replication_port == present.replication_port
    unchanged = same and record.log_directory_ids == present.log_directory_ids and not present.in_controlled_shutdown
    return Decision(
        response=BrokerRegistered(broker_epoch=present.broker_epoch),
        records=() if unchanged else (record,),
        heard=Heard(broker_id=present.broker_id, broker_epoch=present.broker_epoch, metadata_offset=0),
        then=SweepPartitions() if present.in_controlled_shutdown else None,
    )


def _broker_record(command: RegisterBroker, *, broker_epoch: int | None, fenced: bool) -> BrokerRecord:
    return BrokerRecord(
        broker_id=command.broker_id,
        incarnation_id=command.incarnation_id,
        broker_epoch=broker_epoch,
        host=command.host,
        port=command.port,
        rack=command.rack,
        fenced=fenced,
        log_directory_ids=command.log_directory_ids,
        min_feature_level=command.min_feature_level,
        max_feature_level=command.max_feature_level,
        replication_port=command.replication_port,
    )


def _registration_problem(
    image: AppendedImage, settings: ControllerSettings, command: RegisterBroker
) -> Refusal | None:
    level = image.feature_level(FEATURE_NAME) or FEATURE_LEVEL
    rules = (
        (0 <= command.broker_id <= MAX_NODE_ID, f"broker id {command.broker_id} is out of range"),
        (len(command.incarnation_id) == ID_BYTES, f"the incarnation id must have {ID_BYTES} bytes"),
        (
            1 <= len(command.host) <= settings.max_host_characters,
            f"the host must have 1 to {settings.max_host_characters} characters",
        ),
        (1 <= command.port <= 65_535, f"port {command.port} is out of range"),
        (0 <= command.replication_port <= 65_535, f"replication port {command.replication_port} is out of range"),
        (
            len(command.rack or "") <= settings.max_rack_characters,
            f"a rack has at most {settings.max_rack_characters} characters",
        ),
        (
            len(command.log_directory_ids) <= settings.max_log_directories,
            f"more than {settings.max_log_directories} log directories",
        ),
        (all(len(i) == ID_BYTES for i in command.log_directory_ids), f"a directory id must have {ID_BYTES} bytes"),
        (
            command.min_feature_level <= level <= command.max_feature_level,
            f"the cluster runs at feature level {level}, broker {command.broker_id} at {command.min_feature_level} "
            f"to {command.max_feature_level}; install a version that fits",
        ),
    )
    for holds, message in rules:
        if not holds:
            return Refusal(code=ErrorCode.INVALID_REQUEST, message=message)
    if image.broker(command.broker_id) is None and image.broker_count >= settings.max_brokers:
        return Refusal(code=ErrorCode.LIMIT_EXCEEDED, message=f"{settings.max_brokers} brokers are registered already")
    return None


def registered(image: AppendedImage, broker_id: int, broker_epoch: int) -> BrokerImage | Refusal:
    """Return the registration that a broker's request belongs to, or the refusal."""
    broker = image.broker(broker_id)
    if broker is None:
        return Refusal(code=ErrorCode.BROKER_FENCED, message=f"broker {broker_id} is not registered; register it first")
    if broker.broker_epoch != broker_epoch:
        return Refusal(
            code=ErrorCode.STALE_BROKER_EPOCH,
            message=f"broker {broker_id} is registered with epoch {broker.broker_epoch}, not {broker_epoch}; "
            "register again",
        )
    return broker


def heartbeat(image: AppendedImage, sessions: Sessions, command: Heartbeat) -> Decision:
    """Decide the next state of a broker; `docs/controller.md` section "Heartbeats" has the table."""
    broker = registered(image, command.broker_id, command.broker_epoch)
    if isinstance(broker, Refusal):
        return Decision(response=broker)
    heard = Heard(
        broker_id=broker.broker_id,
        broker_epoch=broker.broker_epoch,
        metadata_offset=command.metadata_offset,
        lacks_room=command.lacks_room,
    )
    caught_up = command.metadata_offset > broker.broker_epoch

    def answer(*, fenced: bool, stop: bool = False, change: BrokerChangeRecord | None = None) -> Decision:
        return Decision(
            response=HeartbeatAnswered(fenced=fenced, caught_up=caught_up, should_shutdown=stop),
            records=() if change is None else (change,),
            heard=heard,
            then=None if change is None else SweepPartitions(),
        )

    offline = tuple(sorted(set(command.offline_log_directory_ids) & set(broker.log_directory_ids)))
    if offline != broker.offline_log_directory_ids:
        # Nothing else is decided with it: the next heartbeat repeats the broker's other wishes.
        failed = BrokerChangeRecord(
            broker_id=broker.broker_id, broker_epoch=broker.broker_epoch, offline_log_directory_ids=offline
        )
        response = HeartbeatAnswered(fenced=broker.fenced, caught_up=caught_up, should_shutdown=False)
        return Decision(response=response, records=(failed,), heard=heard)
    if broker.fenced:
        leaves = command.want_shutdown or broker.in_controlled_shutdown
        if leaves or command.want_fence or not caught_up or broker.unclean:
            return answer(fenced=True, stop=command.want_shutdown)
        return answer(fenced=False, change=_change(broker, fenced=False))
    if command.want_shutdown or broker.in_controlled_shutdown:
        return _leave(image, sessions, broker, answer)
    if command.want_fence:
        return answer(fenced=True, change=_change(broker, fenced=True))
    return answer(fenced=False)


class _Answer(Protocol):
    def __call__(self, *, fenced: bool, stop: bool = False, change: BrokerChangeRecord | None = None) -> Decision: ...


def _leave(image: AppendedImage, sessions: Sessions, broker: BrokerImage, answer: _Answer) -> Decision:
    """Let an unfenced broker stop once it leads nothing and every other live broker knows that."""
    if not broker.in_controlled_shutdown:
        if image.counts.leaders.get(broker.broker_id, 0) == 0:
            return answer(fenced=True, stop=True, change=_change(broker, fenced=True))
        shutting = BrokerChangeRecord(
            broker_id=broker.broker_id, broker_epoch=broker.broker_epoch, in_controlled_shutdown=True
        )
        return answer(fenced=False, change=shutting)
    if image.counts.leaders.get(broker.broker_id, 0) > 0:
        return answer(fenced=False)
    needed = image.left_leadership_offset(broker.broker_id)
    others = (other for other in image.brokers() if other.can_lead)
    if any(sessions.metadata_offset(other.broker_id) < needed for other in others):
        return answer(fenced=False)
    return answer(fenced=True, stop=True, change=_change(broker, fenced=True))


def _change(broker: BrokerImage, *, fenced: bool) -> BrokerChangeRecord:
    return BrokerChangeRecord(broker_id=broker.broker_id, broker_epoch=broker.broker_epoch, fenced=fenced)


def fence(image: AppendedImage, command: FenceBroker) -> Decision:
    """Fence a broker whose process is known to be gone."""
    broker = registered(image, command.broker_id, command.broker_epoch)
    if isinstance(broker, Refusal):
        return Decision(response=broker)
    if broker.fenced:
        return Decision(response=Done())
    return Decision(response=Done(), records=(_change(broker, fenced=True),), then=SweepPartitions())


def expire(image: AppendedImage, sessions: Sessions, settings: ControllerSettings, now_ms: int) -> Decision:
    """Fence unfenced brokers whose session is over, as many as one decision may have."""
    unfenced = (broker for broker in image.brokers() if not broker.fenced)
    gone = [broker for broker in unfenced if not sessions.is_live(broker, now_ms)][: settings.max_expired_brokers]
    records = tuple(_change(broker, fenced=True) for broker in gone)
    return Decision(response=Done(), records=records, then=SweepPartitions() if records else None)


def next_expiry_ms(image: AppendedImage, sessions: Sessions) -> int | None:
    """Return when the next session of an unfenced broker ends, in milliseconds; None without an unfenced broker."""
    ends = [sessions.expiry_ms(broker) or 0 for broker in image.brokers() if not broker.fenced]
    return min(ends, default=None)


def allocate_producer_ids(image: AppendedImage, settings: ControllerSettings, command: AllocateProducerIds) -> Decision:
    """Allocate the next block of producer ids to a registered broker."""
    broker = registered(image, command.broker_id, command.broker_epoch)
    if isinstance(broker, Refusal):
        return Decision(response=broker)
    first = image.next_producer_id
    if first > MAX_PRODUCER_ID - settings.producer_id_block:
        return refuse(ErrorCode.LIMIT_EXCEEDED, f"all producer ids up to {first} are given out")
    record = ProducerIdsRecord(
        broker_id=broker.broker_id,
        broker_epoch=broker.broker_epoch,
        next_producer_id=first + settings.producer_id_block,
    )
    return Decision(
        response=ProducerIdsAllocated(first_producer_id=first, count=settings.producer_id_block), records=(record,)
    )


class BrokerState(Enum):
    """State of a registered broker."""

    REGISTERED = "registered"
    """Alive but not allowed to lead: it is catching up, asks to be fenced, or came back uncleanly."""
    ACTIVE = "active"
    """Allowed to lead."""
    SHUTTING_DOWN = "shutting down"
    """In controlled shutdown: it waits for other leaders of its partitions."""
    FENCED = "fenced"
    """Stopped, or silent for a whole session."""


def state_of(broker: BrokerImage, *, session_lasts: bool) -> BrokerState:
    """Return the state of a broker.

    Args:
        broker: its registration.
        session_lasts: True while its session lasts.
    """
    if broker.can_lead:
        return BrokerState.ACTIVE
    if not broker.fenced:
        return BrokerState.SHUTTING_DOWN
    stopped = broker.in_controlled_shutdown or not session_lasts
    return BrokerState.FENCED if stopped else BrokerState.REGISTERED


def remove(
    image: AppendedImage, sessions: Sessions, settings: ControllerSettings, command: RemoveBroker, now_ms: int
) -> Decision:
    """Decide about the removal of a registration. The broker's configs stay, and can still be removed."""
    broker = image.broker(command.broker_id)
    if broker is None:
        return refuse(ErrorCode.INVALID_REQUEST, f"no broker {command.broker_id} is registered")
    if not broker.fenced:
        return refuse(
            ErrorCode.INVALID_REQUEST,
            f"broker {broker.broker_id} lives at {broker.host}:{broker.port}; stop it first",
        )
    hosted = image.counts.replicas.get(broker.broker_id, 0)
    if hosted:
        return refuse(
            ErrorCode.INVALID_REQUEST,
            f"broker {broker.broker_id} has {hosted} replicas ({_examples(image, settings, broker.broker_id)}); "
            "reassign them to other brokers or delete their topics first",
        )
    session = sessions.describe(broker, now_ms)
    if session is not None and session.lasts:
        return refuse(
            ErrorCode.INVALID_REQUEST,
            f"broker {broker.broker_id} was heard of {session.age_ms} ms ago and may live; "
            "stop it, and try again when its session is over",
        )
    record = RemoveBrokerRecord(broker_id=broker.broker_id, broker_epoch=broker.broker_epoch)
    return Decision(response=Done(), records=() if command.validate_only else (record,))


def _examples(image: AppendedImage, settings: ControllerSettings, broker_id: int) -> str:
    """Return the names of some partitions of a broker. Examines at most `max_sweep_partitions`."""
    partitions = ((topic.topic, partition) for topic in image.topics() for partition in topic.partitions)
    looked_at = islice(partitions, settings.max_sweep_partitions)
    names = (f"{topic}:{each.partition}" for topic, each in looked_at if broker_id in each.replicas)
    return ", ".join(islice(names, SHOWN_PARTITIONS)) + ", ..."
