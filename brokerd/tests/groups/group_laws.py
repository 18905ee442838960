# SPDX-License-Identifier: Apache-2.0
"""The laws of groups (`docs/groups.md` section "Invariants") as assertions over states, decisions and committed records.

They look at records and states, never at indexes that the core keeps for itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from brokerd.groups.answers import (
    FetchedOffsets,
    GroupState,
    MemberState,
    OffsetResults,
    OffsetsPrepared,
    Outcome,
    Refusal,
    Refused,
)
from brokerd.groups.codec import decode
from brokerd.groups.commands import (
    AlterOffsets,
    Beat,
    Command,
    CommitOffsets,
    FetchOffsets,
    Join,
    PrepareOffsets,
    ResolveOffsets,
)
from brokerd.groups.core import GroupCore
from brokerd.groups.effects import MemberRemoved, PushAssignment, Removal
from brokerd.groups.group import Group
from brokerd.groups.records import (
    AWAY_EPOCH,
    CurrentRecord,
    CurrentValue,
    GroupLogRecord,
    GroupRecord,
    MemberRecord,
    OffsetRecord,
    PendingRecord,
)
from brokerd.groups.subscriptions import Topic
from brokerd.tests.groups.coordinator_host import UNIX_OFFSET_MS, Batch
from brokerd.tests.groups.model_client import Key, ModelClient, Phase

RETENTION_MS = 8_000
"""Retention of offsets in the walk: below what a config may say, so that a walk sees expiries."""

MAX_BEATS_PER_S = 8
"""Beats per second of a client's life, on average: everything that fails has a floor."""


RoundKey = tuple[str, str, int, int]
"""Group, ingest id, ingest epoch, round."""


def round_of(command: PrepareOffsets | ResolveOffsets) -> RoundKey:
    """Return the round of an ingest, at an epoch and for a group, that a command is about."""
    return (command.group_id, command.ingest_id, command.ingest_epoch, command.round)


class Laws:
    """What must hold, and what has to be remembered for it. The outcomes of ingests are decided here: each once."""

    def __init__(self) -> None:
        self._prepared: dict[RoundKey, dict[Key, int]] = {}
        self._outcomes: dict[RoundKey, bool] = {}
        self._committed_rounds: dict[RoundKey, int] = {}
        self._pending: dict[str, dict[tuple[str, int], list[tuple[int, frozenset[Key]]]]] = {}
        self._owner_at: dict[tuple[str, bytes, int, int], str] = {}
        self._offsets: dict[tuple[str, bytes, int], list[tuple[int, int | None]]] = {}
        self._next: dict[tuple[str, bytes, int], int] = {}
        self._deleted: set[bytes] = set()

    def deleted(self, topic_ids: Iterable[bytes]) -> None:
        """Remember deleted topics."""
        self._deleted.update(topic_ids)

    def prepare(self, command: PrepareOffsets) -> None:
        """Remember what is to go with a round of an ingest."""
        self._prepared[round_of(command)] = {(each.topic_id, each.partition): each.offset for each in command.offsets}

    def decide(self, key: RoundKey, is_committed: bool) -> bool:
        """Decide about a round, unless it is decided. Return True if it is decided now."""
        is_new = key not in self._outcomes
        self._outcomes.setdefault(key, is_committed)
        return is_new

    def outcome_of(self, key: RoundKey) -> bool | None:
        """Return whether a round is committed; None: it is not decided."""
        return self._outcomes.get(key)

    def pushed(self, effect: PushAssignment) -> MemberState:
        """Return what a client hears of a push."""
        return MemberState(
            member_id=effect.member_id,
            member_epoch=effect.member_epoch,
            heartbeat_interval_ms=1_000,
            session_timeout_ms=6_000,
            assignment_number=effect.assignment_number,
            assignment=effect.assignment,
        )

    def check_state(self, core: GroupCore, clients: Sequence[ModelClient], is_serving: bool) -> None:
        """Check P1, P5 and P9 in a state, and that clients own nothing that the coordinator does not know them to hold."""
        for group in core.state.groups.values():
            self._check_group(group)
        for client in clients if is_serving else ():
            group = core.state.groups.get(client.group_id)
            member = None if group is None else group.member(client.member_id)
            if client.phase is Phase.MEMBER and member is not None and not member.is_away:
                held = _keys(member.known_current)
                extra = [key for key in client.held if key not in held]
                assert not extra, f"P1: {client.member_id} uses {extra} that it does not hold"

    def _check_group(self, group: Group) -> None:
        holders: dict[Key, str] = {}
        targets: dict[Key, str] = {}
        value = group.known_value
        for member in group.members.values():
            current = member.current
            if current is not None:
                assert current.member_epoch <= value.target_epoch <= value.group_epoch, f"P5: {group.group_id}"
                for key in _keys(current):
                    assert key not in holders, f"P1: {holders[key]} and {member.member_id} hold {key}"
                    holders[key] = member.member_id
            for topic_id, numbers in () if group.is_frozen else member.target_partitions.items():
                for number in numbers:
                    key = (topic_id, number)
                    assert key not in targets, f"P9: {targets[key]} and {member.member_id} have {key} as target"
                    targets[key] = member.member_id
        if group.value is not None and not group.members:
            assert value.target_epoch == value.group_epoch, f"P5: {group.group_id} is empty"
            assert value.empty_since_ms is not None, f"P5: {group.group_id} is empty and does not know since when"
        if group.members:
            assert value.empty_since_ms is None, f"P5: {group.group_id} has members and claims to be empty"

    def check_decision(
        self, core: GroupCore, command: Command | None, records: Sequence[GroupLogRecord], now_ms: int
    ) -> None:
        """Check P2, P4, P8 and P10 in a decision, before it is replayed."""
        self._check_pending(core, command, records)
        is_renewed = isinstance(command, Join) and command.lost_epoch > 0
        abouts = {(each.group_id, each.member_id): each.value for each in records if isinstance(each, MemberRecord)}
        for record in records:
            group = core.state.groups.get(record.group_id)
            if isinstance(record, CurrentRecord) and record.value is not None and group is not None:
                member = group.member(record.member_id)
                about = abouts.get((record.group_id, record.member_id), None if member is None else member.about)
                if member is not None and about is not None and AWAY_EPOCH not in _epochs(member.current, record.value):
                    topics = core.state.topics
                    wanted = topics.meaning(about.subscription)
                    if not topics.is_loaded:
                        # A coordinator that knows no topics must not take anything away.
                        wanted = frozenset(member.target_partitions)
                    for key in _assigned(member.known_current):
                        is_wanted = key[0] in wanted and key[1] in member.target_partitions.get(key[0], ())
                        if is_wanted and not is_renewed:
                            before = member.known_current.assigned[key[0]][key[1]]
                            after = record.value.assigned.get(key[0], {}).get(key[1])
                            assert before == after, f"P4: {record.member_id} is disturbed in {key}"
            if isinstance(record, OffsetRecord) and group is not None:
                self._check_offset(group, command, record, now_ms)

    def _check_pending(self, core: GroupCore, command: Command | None, records: Sequence[GroupLogRecord]) -> None:
        """Check that nothing passes a pending partition, and that an outcome commits all that was prepared, or nothing (P10)."""
        written = {
            (each.topic_id, each.partition): None if each.value is None else each.value.offset
            for each in records
            if isinstance(each, OffsetRecord)
        }
        if isinstance(command, ResolveOffsets):
            key = round_of(command)
            assert not written or self._outcomes.get(key), f"P10: {key} is not committed, but {written} are"
            group = core.state.groups.get(command.group_id)
            value = None if group is None else group.pending.get((command.ingest_id, command.round))
            if self._outcomes.get(key) and value is not None and value.ingest_epoch == command.ingest_epoch:
                sent = {each: offset for each, offset in self._prepared[key].items() if each[0] not in self._deleted}
                kept = {each: offset for each, offset in written.items() if each[0] not in self._deleted}
                assert kept == sent, f"P10: {key} is committed, with {kept} of {sent}"
            return
        for record in records:
            group = core.state.groups.get(record.group_id)
            if isinstance(record, OffsetRecord) and group is not None and record.topic_id not in self._deleted:
                for key, value in group.pending.items():
                    is_pending = any(
                        (each.topic_id, each.partition) == (record.topic_id, record.partition) for each in value.offsets
                    )
                    assert not is_pending, f"P10: {command} passes {key} at {record}"

    def _check_offset(self, group: Group, command: Command | None, record: OffsetRecord, now_ms: int) -> None:
        old = group.offsets.get((record.topic_id, record.partition))
        if old is None:
            return
        if record.value is not None:
            is_reset = isinstance(command, AlterOffsets)
            assert is_reset or record.value.offset >= old.offset, f"P2: {record} moves back from {old.offset}"
            assert not is_reset or not group.members, "P2: a reset of a group with members"
        elif record.topic_id not in self._deleted:
            assert command is None, f"P2: {command} deletes an offset"
            assert not group.members, f"P8: an offset of {group.group_id} with members expires"
            since_ms = max(old.commit_ms, group.known_value.empty_since_ms or 0)
            assert now_ms + UNIX_OFFSET_MS >= since_ms + RETENTION_MS, "P8: an offset expires early"

    def note_committed(self, batch: Batch, index: int) -> None:
        """Note a committed batch. No pair of partition and assignment epoch may belong to two members (P1)."""
        records = [decode(each) for each in batch.records]
        if isinstance(batch.command, ResolveOffsets) and any(isinstance(each, OffsetRecord) for each in records):
            key = round_of(batch.command)
            self._committed_rounds[key] = self._committed_rounds.get(key, 0) + 1
            assert self._committed_rounds[key] == 1, f"P10: {key} is committed twice"
        for record in records:
            if isinstance(record, OffsetRecord):
                key = (record.group_id, record.topic_id, record.partition)
                offset = None if record.value is None else record.value.offset
                self._offsets.setdefault(key, []).append((index, offset))
                if isinstance(batch.command, AlterOffsets) and offset is not None:
                    self._next[key] = max(self._next.get(key, 0), offset)
                if isinstance(batch.command, ResolveOffsets):
                    assert offset == self._prepared[round_of(batch.command)].get(key[1:]), f"P10: {record}"
            if isinstance(record, PendingRecord):
                pending = self._pending.setdefault(record.group_id, {}).setdefault(record.pending_key, [])
                waiting = () if record.value is None else record.value.offsets
                pending.append((index, frozenset((each.topic_id, each.partition) for each in waiting)))
            if isinstance(record, GroupRecord) and record.value is None:
                assert not self._pending_before(record.group_id, index + 1), f"P10: {record.group_id} goes"
                # A group that was deleted begins anew at epoch 1. Its former members are unknown to it.
                for pair in [each for each in self._owner_at if each[0] == record.group_id]:
                    del self._owner_at[pair]
            if not isinstance(record, CurrentRecord) or record.value is None:
                continue
            for held in (record.value.assigned, record.value.revoking):
                for topic_id, numbers in held.items():
                    for number, epoch in numbers.items():
                        pair = (record.group_id, topic_id, number, epoch)
                        owner = self._owner_at.setdefault(pair, record.member_id)
                        assert owner == record.member_id, f"P1: {owner} and {record.member_id} have {pair}"

    def check_answer(self, command: Command, outcome: Outcome, end: int) -> None:
        """Check an answer that is given because the log is committed up to a batch (exclusive): P2, P6, P8 and P10."""
        if isinstance(command, PrepareOffsets) and isinstance(outcome, OffsetsPrepared):
            known = self._pending.get(command.group_id, {}).get((command.ingest_id, command.round), ())
            assert any(index < end and keys for index, keys in known), f"P6: {command} is prepared, but not committed"
        if isinstance(command, FetchOffsets) and isinstance(outcome, FetchedOffsets):
            pending = self._pending_before(command.group_id, end)
            for each in outcome.offsets:
                if each.refused is not None:
                    continue
                assert (each.topic_id, each.partition) not in pending, f"P10: {each} is answered while it is pending"
                committed = self._offset_at((command.group_id, each.topic_id, each.partition), end)
                answered = None if each.value is None else each.value.offset
                assert answered == committed, f"P2: {answered} was answered, {committed} is committed"
        if isinstance(command, CommitOffsets) and isinstance(outcome, OffsetResults):
            for sent, result in zip(command.offsets, outcome.results, strict=True):
                committed = self._offset_at((command.group_id, sent.topic_id, sent.partition), end)
                if result.refused is None:
                    assert committed == sent.offset, f"P6: {sent} is acknowledged, {committed} is committed"

    def _pending_before(self, group_id: str, end: int) -> frozenset[Key]:
        """Return the partitions of a group with a pending offset, as the log says up to a batch (exclusive)."""
        found: set[Key] = set()
        for records in self._pending.get(group_id, {}).values():
            before = [keys for index, keys in records if index < end]
            found |= before[-1] if before else frozenset()
        return frozenset(found)

    def check_outcomes(self, core: GroupCore) -> None:
        """Check P10 at the end: nothing is pending, and every round that is committed has its offsets, once."""
        for group in core.state.groups.values():
            assert not group.pending, f"P10: {group.group_id} waits for {sorted(group.pending)}"
        for key, is_committed in self._outcomes.items():
            if is_committed and any(each[0] not in self._deleted for each in self._prepared[key]):
                assert self._committed_rounds.get(key) == 1, f"P10: {key} is committed, its offsets are not"

    def _offset_at(self, key: tuple[str, bytes, int], end: int) -> int | None:
        before = [offset for index, offset in self._offsets.get(key, ()) if index < end]
        return before[-1] if before else None

    def check_removal(self, client: ModelClient, effect: MemberRemoved, now_ms: int) -> None:
        """Check that a live client has given up before the coordinator ends its session (P1)."""
        del now_ms
        if effect.reason is Removal.SESSION_ENDED and client.phase is Phase.MEMBER:
            assert not client.held, f"P1: {client.member_id} is removed while it uses {client.held}"

    def check_refusal(self, client: ModelClient, command: Command, outcome: Outcome) -> None:
        """Check that a client that behaves is never fenced while it is a member (P4)."""
        if isinstance(command, Beat) and isinstance(outcome, Refused) and client.request_number == command.beat_number:
            assert outcome.code is not Refusal.FENCED_MEMBER_EPOCH, f"P4: {client.member_id}: {outcome.message}"

    def check_client(self, client: ModelClient, life_ms: int) -> None:
        """Check that a client does not spin."""
        assert client.beat_count <= 20 + MAX_BEATS_PER_S * life_ms / 1_000, f"{client.member_id} spins"

    def delivered(self, client: ModelClient, key: Key, offset: int) -> None:
        """Check that the application of no member is given a record before everything below it was given to one."""
        place = (client.group_id, *key)
        following = self._next.get(place, 0)
        assert offset <= following, f"P2: {client.member_id} skips {following} to {offset} of {key}"
        self._next[place] = max(following, offset + 1)

    def check_stable(self, core: GroupCore, alive: Sequence[ModelClient], topics: Iterable[Topic]) -> None:
        """Check P3: every group is stable, and every partition of a subscribed topic is used by its owner."""
        known = tuple(topics)
        left = sorted(self._deleted.intersection(core.topics_with_offsets()))
        assert not left, f"P2: offsets of deleted topics {left} stay"
        for group_id in sorted({each.group_id for each in alive}):
            group = core.state.group(group_id)
            clients = [each for each in alive if each.group_id == group_id]
            assert group is not None, f"P3: {group_id} is not there"
            state = core.state.state_of(group)
            assert state is GroupState.STABLE, f"P3: {group_id} is {state}"
            wanted: set[bytes] = set()
            for client in clients:
                assert client.phase is Phase.MEMBER, f"P3: {client.member_id} is {client.phase} ({client.error})"
                member = group.member(client.member_id)
                assert member is not None, f"P3: {client.member_id} is no member"
                assert set(_assigned(member.known_current)) == set(client.owned), f"P3: {client.member_id} differs"
                wanted |= core.state.topics.meaning(client.subscription)
                assert all(position is not None for position in client.owned.values()), "P3: no position"
            used = sorted(key for client in clients for key in client.owned)
            every = sorted(
                (each.topic_id, number)
                for each in known
                if each.topic_id in wanted
                for number in range(each.partition_count)
            )
            assert used == every, f"P3: {group_id} uses {used}, not {every}"


def _assigned(current: CurrentValue) -> tuple[Key, ...]:
    return tuple((topic_id, number) for topic_id, numbers in current.assigned.items() for number in numbers)


def _keys(current: CurrentValue) -> tuple[Key, ...]:
    revoking = ((topic_id, number) for topic_id, numbers in current.revoking.items() for number in numbers)
    return (*_assigned(current), *revoking)


def _epochs(old: CurrentValue | None, new: CurrentValue) -> tuple[int, ...]:
    return (new.member_epoch,) if old is None else (old.member_epoch, new.member_epoch)
