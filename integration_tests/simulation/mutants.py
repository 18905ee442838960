# SPDX-License-Identifier: Apache-2.0
"""Mutants of brokers, controller, log and clients: deliberate mistakes that the world simulator must find. Otherwise it proves nothing.

Owns the list. `metaquorum.testing.mutants` defines mutants and installs the mistake.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from lograft._client.transport import Transport
from lograft._groups.membership import Membership
from lograft._grpc.http2_socket import Http2Socket
from lograft._producer.sequencer import PartitionSequencer

from brokerd.api.log_service import init_producer
from brokerd.api.log_service.list_offsets import ListOffsetsCalls
from brokerd.api.log_service.read import ReadCalls
from brokerd.coordinator import prefix, unserved
from brokerd.coordinator.machine import PartitionMachine
from brokerd.coordinator.partition import CoordinatorPartition
from brokerd.groups import offsets, pending
from brokerd.groups import reconciliation as group_reconciliation
from brokerd.groups.sessions import Sessions
from brokerd.ingests import attempts, commits, opening
from brokerd.ingests import ingest as ingests
from brokerd.ingests.ingest import Ingest
from brokerd.ingests.state import IngestsState
from brokerd.ingests.steps import IngestSteps
from brokerd.partition import reconciliation
from brokerd.partition.follower import Following
from brokerd.partition.isr_state import IsrState
from brokerd.partition.leader import Leadership
from brokerd.partition.progress import FollowerProgress
from brokerd.partition.roles import Roles
from brokerd.publishing import garbage, resumption
from brokerd.publishing.plan import Planner
from brokerd.publishing.publisher import _Publication  # pyright: ignore[reportPrivateUsage]
from brokerd.replica.replica import Replica
from brokerd.replication.leader_stream import LeaderStream
from integration_tests.simulation.options import (
    WorldOptions,
    catch_up_storm,
    damage_storm,
    directory_storm,
    end_storm,
    forgery_storm,
    group_storm,
    half_open_storm,
    ingest_storm,
    kill_storm,
    last_disk_storm,
    lease_storm,
    loss_storm,
    power_storm,
    quorum_storm,
    snapshot_storm,
    switch_storm,
    transform_storm,
)
from metaquorum.controller import alter_partition, brokers, elections, lost_replicas
from metaquorum.controller_service.controller_host import ControllerHost
from metaquorum.net.connection import Connection as ServerConnection
from metaquorum.net.peers import Peers
from metaquorum.raft import peers
from metaquorum.replica.snapshot_maker import SnapshotMaker
from metaquorum.replica.snapshot_shell import SnapshotShell
from metaquorum.testing.mutants import Change, Mutant
from storage.log import recovery
from storage.log.producers import ProducerWindows
from storage.segment.damage import DamagedRanges


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldMutant(Mutant):
    """A mistake, and the options of the seeds that hunt it."""

    storm: Callable[[int], WorldOptions] = power_storm


MUTANTS: Final[tuple[WorldMutant, ...]] = (
    # The leader.
    WorldMutant(
        name="the high watermark advances below min ISR",
        owner=Leadership,
        function="committed_end",
        old="if self.isr.is_below_min:",
        new="if False:",
        storm=lambda seed: power_storm(1 + 2 * seed),
    ),
    WorldMutant(
        name="what a follower has appended counts as flushed",
        owner=FollowerProgress,
        function="counted_offset",
        old="self.flushed_offset if is_flush_counted else self.appended_offset",
        new="self.appended_offset",
    ),
    WorldMutant(
        name="a follower joins before it holds what is committed",
        owner=Leadership,
        function="_may_join",
        old="counted < max(self._log.high_watermark, self.epoch_start_offset)",
        new="counted < 0",
        storm=catch_up_storm,
    ),
    WorldMutant(
        name="a log that diverges is accepted",
        owner=Leadership,
        function="subscribe",
        old="    parting = compared(",
        new="    parting = None\n    compared(",
        storm=kill_storm,
    ),
    WorldMutant(
        name="only the leader counts",
        owner=Leadership,
        function="_least",
        old="if node_id == self._node_id:",
        new="if True:",
    ),
    WorldMutant(
        name="a leader that others have replaced says where its partition ends",
        owner=ListOffsetsCalls,
        function="_check_end",
        old="replica.leads_several and self._parts.session.is_lost",
        new="False",
        storm=end_storm,
    ),
    # The follower.
    WorldMutant(
        name="a follower acknowledges before its flush",
        owner=Following,
        function="report",
        old="if is_more_appended or log.flushed_offset > flushed_offset:",
        new="if log.log_end_offset > appended_offset:\n        log.flushed_offset = log.log_end_offset",
    ),
    WorldMutant(
        name="a follower takes for committed what it does not have yet",
        owner=Following,
        function="committed_end",
        old="min(known, self._log.log_end_offset)",
        new="known",
    ),
    WorldMutant(
        name="a follower gives readers what is not committed",
        owner=Following,
        function="readable_end",
        old="return self.committed_end() if",
        new="return self._log.log_end_offset if",
        storm=lambda seed: replace(power_storm(seed), has_racks=True),
    ),
    WorldMutant(
        name="a log that diverges is not truncated",
        owner=reconciliation,
        function="truncation_offset",
        old="return min(bound, log_end_offset)",
        new="return log_end_offset",
        storm=kill_storm,
    ),
    # The shells around both.
    WorldMutant(
        name="an append is acknowledged as flushed when its flush begins",
        owner=Replica,
        function="_begin_flush",
        old="self._is_flushing = True",
        new="self._is_flushing = True\n        self._note_flushed(work.end_offset)",
    ),
    WorldMutant(
        name="what was flushed before a truncation is told behind it",
        owner=Replica,
        function="take_event",
        old="if type(event) is not LogFlushed:",
        new="if True:",
    ),
    WorldMutant(
        name="readers see what is not committed",
        owner=Replica,
        function="_carry_out",
        old="self.listeners.tell_high_watermark(effect.high_watermark)",
        new="self.listeners.tell_high_watermark(self._log.log_end_offset)",
        storm=catch_up_storm,
    ),
    WorldMutant(
        name="sequences are forgotten at an unclean start",
        owner=recovery._Opening,  # pyright: ignore[reportPrivateUsage]
        function="_recover",
        old="if header.has_producer and header.base_offset >= replay_from:",
        new="if False:",
        storm=kill_storm,
    ),
    WorldMutant(
        name="a batch that is sent again gets another sequence number",
        owner=PartitionSequencer,
        function="unbind",
        old="batch.batch_number = None",
        new="batch.batch_number = batch.base_sequence = None",
        storm=kill_storm,
    ),
    WorldMutant(
        name="a producer's sequence is not looked at",
        owner=ProducerWindows,
        function="check",
        old="state = self._states.get(header.producer_id)",
        new="state = None",
        storm=kill_storm,
    ),
    WorldMutant(
        name="a segment that was repaired keeps its damage",
        owner=DamagedRanges,
        function="forget_between",
        old="if not first_base_offset <= each.segment_base_offset < end_offset",
        new="if True",
        storm=damage_storm,
    ),
    # The controller.
    WorldMutant(
        name="a replica outside the in-sync ones is elected",
        owner=elections,
        function="elect",
        old="lambda node_id: node_id in isr and can_lead(node_id)",
        new="can_lead",
    ),
    WorldMutant(
        name="one that may have lost records keeps its place in the in-sync replicas",
        owner=brokers,
        function="register",
        old="lost or (present is not None and (present.unclean or command.clean_stop_epoch != present.broker_epoch))",
        new="lost",
        storm=loss_storm,
    ),
    WorldMutant(
        name="what was acknowledged before a switch to ack counts as flushed",
        owner=elections,
        function="_lossy_for",
        old="broker.replaced_broker_epoch < ack_since(image, topic, broker.broker_id)",
        new="False",
        storm=switch_storm,
    ),
    WorldMutant(
        name="a broker that lost its disk is trusted",
        owner=brokers,
        function="_has_lost_directories",
        old="present.lost_directories or not set(present.log_directory_ids) <= set(command.log_directory_ids)",
        new="False",
        storm=loss_storm,
    ),
    WorldMutant(
        name="any replica replaces a lost leader",
        owner=lost_replicas,
        function="without_lost",
        old="rules_of(image, topic)",
        new="type(rules_of(image, topic))(rules_of(image, topic).min_isr, unclean=True)",
        storm=directory_storm,
    ),
    WorldMutant(
        name="the last one in sync leads without its disk",
        owner=elections,
        function="partition_change",
        old="awaited = _awaited(partition, isr, lossy)",
        new="awaited = ()",
        storm=last_disk_storm,
    ),
    WorldMutant(
        name="a second loss changes which directories are awaited",
        owner=elections,
        function="_awaited",
        old="and each.broker_id not in known",
        new="",
        storm=last_disk_storm,
    ),
    # The quorum.
    WorldMutant(
        name="an epoch that no node has reached is believed",
        owner=peers,
        function="is_plausible",
        old="return epoch <= own + MAX_EPOCH_LEAP",
        new="return True",
        storm=forgery_storm,
    ),
    WorldMutant(
        name="a broker may have applied records that no leader has appended",
        owner=ControllerHost,
        function="check_applied",
        old="if not 0 <= metadata_offset <= end_offset:",
        new="if False:",
        storm=forgery_storm,
    ),
    WorldMutant(
        name="the session of one stream of a follower counts for the next",
        owner=LeaderStream,
        function="_subscribe",
        old="self._number * SESSIONS_PER_STREAM + wanted.session",
        new="wanted.session",
        storm=forgery_storm,
    ),
    # The metadata.
    WorldMutant(
        name="who follows the metadata is not told of an installed snapshot",
        owner=SnapshotShell,
        function="_install",
        old="feed.install(ready.image)",
        new="pass",
        storm=snapshot_storm,
    ),
    WorldMutant(
        name="a snapshot says it is one record older than it is",
        owner=SnapshotMaker,
        function="_prepare",
        old="Offset(state.metadata_offset)",
        new="Offset(state.metadata_offset - 1)",
        storm=snapshot_storm,
    ),
    # Dead connections.
    WorldMutant(
        name="a channel that owes an answer is kept, and pings never end a connection",
        owner=Transport,
        function="give_up",
        old="if key is None:",
        new="if True:",
        also=(
            Change(owner=Http2Socket, function="_watch", old="if self._asked_s is not None and", new="if False and"),
        ),
        storm=half_open_storm,
    ),
    WorldMutant(
        name="a connection between servers over which nothing comes any more is kept",
        owner=ServerConnection,
        function="tick",
        old="if silent_ms >= self._limits.liveness_ms or (self._suspected_ms is not None and now_ms >= self._suspected_ms):",
        new="if False:",
        storm=half_open_storm,
    ),
    WorldMutant(
        name="a request between servers is answered twice",
        owner=ServerConnection,
        function="_finish",
        old="    self._queue(call_id, kind, message)\n",
        new="    self._queue(call_id, kind, message)\n    self._queue(call_id, kind, message)\n",
    ),
    WorldMutant(
        name="a connection between servers that is over is used after another one was made",
        owner=Peers,
        function="_lose",
        old="if each is link:",
        new="if False:",
        also=(Change(owner=Peers, function="_usable", old="if link is None or link.is_usable:", new="if True:"),),
    ),
    WorldMutant(
        name="a request between servers waits for ever",
        owner=ServerConnection,
        function="tick",
        old="if call is not None and call.role is _Role.ASKED:",
        new="if False:",
        storm=half_open_storm,
    ),
    # Groups: coordinators.
    WorldMutant(
        name="a coordinator answers before its records are committed",
        owner=PartitionMachine,
        function="_settle",
        old="waiting[0].wait_offset <= self.high_watermark",
        new="True",
        storm=group_storm,
    ),
    WorldMutant(
        name="a coordinator that has been replaced goes on answering",
        owner=PartitionMachine,
        function="resign",
        old="    self._end(unserved)\n    self.state = State.INACTIVE",
        new="    pass",
        also=(
            Change(
                owner=CoordinatorPartition,
                function="_take_turn",
                old='assert replica.leader_epoch == machine.leader_epoch, f"{self}: the end of an epoch was not heard"',
                new="pass",
            ),
        ),
        storm=group_storm,
    ),
    WorldMutant(
        name="a coordinator does not read the log above its snapshot",
        owner=CoordinatorPartition,
        function="_load_log",
        old="else reader.snapshot.end_offset",
        new="else machine.load_end",
        storm=group_storm,
    ),
    WorldMutant(
        name="a broker says that it does not know the members of another coordinator",
        owner=unserved,
        function="client_failure",
        old="code=ErrorCode.NOT_COORDINATOR, message=failure.message, leader=failure.leader",
        new="code=ErrorCode.UNKNOWN_MEMBER, message=failure.message",
        storm=group_storm,
    ),
    WorldMutant(
        name="the end of a stream is the end of its members",
        owner=Sessions,
        function="close_stream",
        old="self._sessions[key].is_stream_open = False",
        new="self.timers.set(Timer(TimerKind.SESSION, *key), 0)",
        storm=group_storm,
    ),
    WorldMutant(
        name="a partition is given before its owner has given it up",
        owner=group_reconciliation,
        function="reconcile",
        old="if number not in kept.get(topic_id, ()) and is_free(topic_id, number)",
        new="if number not in kept.get(topic_id, ())",
        storm=group_storm,
    ),
    WorldMutant(
        name="partitions that a member keeps get a new assignment epoch",
        owner=group_reconciliation,
        function="reconcile",
        old="assigned=_merged(kept, gained),",
        new="assigned={t: dict.fromkeys(n, target_epoch) for t, n in _merged(kept, gained).items()},",
        storm=group_storm,
    ),
    # Groups: members.
    WorldMutant(
        name="a member gives a partition up before its application has",
        owner=Membership,
        function="request",
        old="owned=self.owned,",
        new="owned=tuple(sorted(self._target)),",
        storm=group_storm,
    ),
    WorldMutant(
        name="a member reads on after the end of its session",
        owner=Membership,
        function="_told",
        old="max(self._beat_ms, state.session_timeout_ms)",
        new="1_000 * state.session_timeout_ms",
        storm=lease_storm,
    ),
    # Ingests: coordinators.
    WorldMutant(
        name="an ingest is published before its decision is committed",
        owner=PartitionMachine,
        function="_settle",
        old="waiting[0].wait_offset <= self.high_watermark",
        new="True",
        storm=ingest_storm,
    ),
    WorldMutant(
        name="a decision does not say which attempts count",
        owner=commits,
        function="_outline",
        old="outline.append(ManifestRecord(command.ingest_id, command.round, keys))",
        new="pass",
        storm=ingest_storm,
    ),
    WorldMutant(
        name="a fenced client commits",
        owner=commits,
        function="_verify",
        old="    if command.ingest_epoch != value.ingest_epoch:\n        return fenced(value, command.ingest_epoch)\n",
        new="",
        storm=ingest_storm,
    ),
    WorldMutant(
        name="a fenced client opens and seals attempts",
        owner=attempts,
        function="_open",
        old="    if command.ingest_epoch != value.ingest_epoch:\n        return fenced(value, command.ingest_epoch)\n",
        new="",
        storm=ingest_storm,
    ),
    WorldMutant(
        name="an open of an ingest keeps the epoch",
        owner=opening,
        function="open_ingest",
        old="ingest_epoch=former.ingest_epoch + 1,",
        new="ingest_epoch=former.ingest_epoch,",
        storm=ingest_storm,
    ),
    WorldMutant(
        name="another manifest of an ingest gets the first answer",
        owner=commits,
        function="_answered_before",
        old="!= decision.digest",
        new="is None",
        storm=ingest_storm,
    ),
    WorldMutant(
        name="a commit of an ingest is answered before everything is published",
        owner=ingests,
        function="result_of",
        old="if decision is None or value.state is IngestState.DECIDED:",
        new="if decision is None:",
        storm=ingest_storm,
    ),
    WorldMutant(
        name="the next publishing sequence of a partition does not move",
        owner=commits,
        function="_outline",
        old="advanced(base, records)",
        new="base",
        storm=ingest_storm,
    ),
    WorldMutant(
        name="what is staged is not checked before a decision",
        owner=IngestSteps,
        function="_check_all",
        old="for each in waiting:",
        new="for each in ():",
        storm=ingest_storm,
    ),
    WorldMutant(
        name="staged records are freed at the decision",
        owner=Ingest,
        function="needed_from",
        old=" or plan is None or not plan.is_published",
        new="",
        storm=ingest_storm,
    ),
    # Ingests: leaders.
    WorldMutant(
        name="the tasks of a decision are published in the wrong order",
        owner=ingests,
        function="slices_by_partition",
        old="for key, attempt in attempts:",
        new="for key, attempt in reversed(attempts):",
        storm=ingest_storm,
    ),
    WorldMutant(
        name="a part is published again from its begin, and the log takes it",
        owner=resumption,
        function="done_records",
        old="return min(ahead, records)",
        new="return 0",
        also=(
            Change(
                owner=ProducerWindows,
                function="check",
                old="state = self._states.get(header.producer_id)",
                new="state = None if header.producer_id >= 2**62 else self._states.get(header.producer_id)",
            ),
        ),
        storm=ingest_storm,
    ),
    WorldMutant(
        name="a part is answered before it is committed",
        owner=_Publication,
        function="run",
        old="if end_offset is not None:",
        new="if False:",
        storm=ingest_storm,
    ),
    WorldMutant(
        name="a reader does not get the last committed record",
        owner=ReadCalls,
        function="_records",
        old="response.next_offset < response.high_watermark",
        new="response.next_offset < response.high_watermark - 1",
        storm=ingest_storm,
    ),
    WorldMutant(
        name="a reader waits while something is staged",
        owner=ReadCalls,
        function="_records",
        old="while not response.records and response.next_offset",
        new="while self._parts.staging_quota.used_bytes == 0 and not response.records and response.next_offset",
        storm=ingest_storm,
    ),
    # Ingests: groups.
    WorldMutant(
        name="offsets count although the ingest is not decided",
        owner=pending,
        function="resolve",
        old="if command.is_committed and is_it:",
        new="if True:",
        storm=ingest_storm,
    ),
    WorldMutant(
        name="offsets are prepared at a fenced epoch",
        owner=pending,
        function="prepare",
        old="if known is not None and known.ingest_epoch >= command.ingest_epoch:",
        new="if False:",
        storm=ingest_storm,
    ),
)


NOT_FOUND_YET: Final[tuple[WorldMutant, ...]] = (
    # Between an append and its answer to the coordinator the leader must end, and lead again with no later batch of the producer.
    WorldMutant(
        name="a leader that started again does not know what it has published",
        owner=recovery._Opening,  # pyright: ignore[reportPrivateUsage]
        function="_recover",
        old="if header.has_producer and header.base_offset >= replay_from:",
        new="if header.has_producer and header.producer_id < 2**62 and header.base_offset >= replay_from:",
        storm=ingest_storm,
    ),
    # The coordinator of a group must ask between the prepare and the decision, so the decision must take more than two seconds.
    WorldMutant(
        name="a question of a group does not end an undecided round",
        owner=opening,
        function="decide_outcome",
        old="        return decided(OutcomeKnown(is_committed=False), [record], effects)",
        new="        pass",
        storm=ingest_storm,
    ),
    # The replay of each plan record asks for its part too, so this one takes effect in a core that was loaded and never replays more.
    WorldMutant(
        name="parts of an ingest are not asked for again after a failover",
        owner=IngestsState,
        function="note_time",
        old="self._after_part(topic_partition)",
        new="pass",
        storm=ingest_storm,
    ),
    # A coordinator that does not answer for a second while the attempt is open, and a leader that sweeps just then.
    WorldMutant(
        name="staged records that no coordinator answers for are garbage",
        owner=garbage,
        function="is_needed",
        old="if batch.producer_id not in live:\n        return True",
        new="if batch.producer_id not in live:\n        return False",
        storm=ingest_storm,
    ),
    # A leader must change between two batches of one part; parts of a world have a few small batches.
    WorldMutant(
        name="the rest of a part is published from a wrong sequence on",
        owner=Planner,
        function="plan",
        old="first_record=self._done_records",
        new="first_record=0",
        storm=ingest_storm,
    ),
    # A copy of a prepare must be on the way for longer than its round needs to be resolved.
    WorldMutant(
        name="a late copy of a prepare is taken",
        owner=pending,
        function="prepare",
        old="    if state.sessions.is_resolved(",
        new="    if False and state.sessions.is_resolved(",
        storm=ingest_storm,
    ),
    # A member must get a partition while its offset waits for a decision: between a prepare and what follows lie milliseconds.
    WorldMutant(
        name="an offset is told although another one waits for its decision",
        owner=offsets,
        function="fetch",
        old="if (problem := _check_pending(group, *key)) is not None",
        new="if (problem := None) is not None",
        storm=transform_storm,
    ),
    WorldMutant(
        name="a program commits inputs that are not its own any more",
        owner=pending,
        function="prepare",
        old="command.offsets, member, command.member_epoch, renewed=key",
        new="command.offsets, None, command.member_epoch, renewed=key",
        storm=transform_storm,
    ),
    WorldMutant(
        name="a member begins at an offset that it looked up before it got the partition",
        owner=Membership,
        function="is_fresh",
        old="came <= mark and ",
        new="",
        storm=group_storm,
    ),
    WorldMutant(
        name="a commit of a former owner counts",
        owner=offsets,
        function="_check_held",
        old="if assignment_epoch is not None and assignment_epoch <= member_epoch:",
        new="if True:",
        storm=group_storm,
    ),
    WorldMutant(
        name="a snapshot counts although the log above it has gaps",
        owner=PartitionMachine,
        function="takes",
        old="return not self._needs_whole or piece.is_whole_from(self.replayed_end)",
        new="return True",
        also=(
            Change(
                owner=prefix.PrefixFold,
                function="add",
                old="if not self._may_have_gaps and not piece.is_whole_from(self.next_offset):",
                new="if False:",
            ),
        ),
        storm=group_storm,
    ),
    WorldMutant(
        name="a change is acknowledged by a leadership that has ended",
        owner=ControllerHost,
        function="_append",
        old="if self._controller is not controller:",
        new="if False:",
        storm=quorum_storm,
    ),
    WorldMutant(
        name="proposed members do not count",
        owner=IsrState,
        function="_count_maximal",
        old=" or node_id in proposed",
        new="",
        storm=kill_storm,
    ),
    WorldMutant(
        name="a proposal does not say which process it means",
        owner=Leadership,
        function="propose",
        old="broker_epoch=self.broker_epoch_of(node_id)",
        new="broker_epoch=None",
        storm=loss_storm,
    ),
    WorldMutant(
        name="a replica keeps an epoch without records when it follows",
        owner=Roles,
        function="change",
        old="ForgetEmptyEpoch(), ",
        new="",
        storm=kill_storm,
    ),
    WorldMutant(
        name="events reach the core while the log is being truncated",
        owner=Replica,
        function="take_event",
        old="if self._truncation is not None and type(event) not in _NEVER_HELD:",
        new="if False:",
        storm=kill_storm,
    ),
    WorldMutant(
        name="an id that a broker has not heard of is refused for good",
        owner=init_producer,
        function="check_identity",
        old="ErrorCode.METADATA_NOT_REACHED",
        new="ErrorCode.INVALID_REQUEST",
    ),
    WorldMutant(
        name="an in-sync replica is taken for the process that it was",
        owner=alter_partition,
        function="_member_problem",
        old="if broker_epoch is not None and broker_epoch != member.broker_epoch:",
        new="if False:",
        storm=loss_storm,
    ),
    WorldMutant(
        name="a proposal of an old leadership counts",
        owner=alter_partition,
        function="_epoch_problem",
        old="if named != own:",
        new="if False:",
        storm=kill_storm,
    ),
)
"""Mistakes that survived fifty seeds and more: they need faults in an order that the storms rarely produce."""
