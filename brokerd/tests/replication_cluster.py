# SPDX-License-Identifier: Apache-2.0
"""Three brokers around the cores of one partition, and the controller's core; it plays the shells.

`replication_laws.py` has the laws.
"""

from __future__ import annotations

from typing import Final

from lograft.wire.codes import ErrorCode

from brokerd.partition.effects import (
    AcceptSubscription,
    AppendBatches,
    BeginLeaderEpoch,
    CompleteAck,
    DivergeSubscription,
    Effect,
    EndSubscription,
    FailAck,
    FlushLog,
    ForgetEmptyEpoch,
    ProposeIsr,
    PublishHighWatermark,
    Resign,
    SendAck,
    Subscribe,
    TruncateLog,
    Unsubscribe,
)
from brokerd.partition.events import BatchAppended, BrokerState, Event, LogFlushed, PartitionChanged
from brokerd.partition.follower_events import (
    BatchesReceived,
    LeaderAdvanced,
    LogTruncated,
    SubscriptionAccepted,
    SubscriptionDiverged,
    SubscriptionEnded,
)
from brokerd.partition.leader_events import (
    FollowerAcked,
    FollowerLost,
    FollowerSubscribed,
    ProposalAccepted,
    ProposalRefused,
)
from brokerd.partition.reconciliation import SubscriptionError
from brokerd.partition.replica import PartitionReplica
from brokerd.tests.replication_laws import MIN_ISR, REPLICAS, Watched
from brokerd.tests.replication_nodes import (
    InFlight,
    Node,
    Pushed,
    Stream,
    Subscription,
    ToFollower,
    Told,
    ToLeader,
    Version,
)
from metaquorum.controller.commands import (
    AlterPartition,
    FenceBroker,
    IsrProposal,
    LeadershipResigned,
    LedPartition,
    PartitionsAltered,
    Refusal,
    ResignLeadership,
)
from metaquorum.metadata.state import PartitionImage
from metaquorum.metadata.topic_configs import FlushPolicy
from metaquorum.tests.controller_world import register, topic_id

LAG_MS: Final = 100


class Cluster(Watched):
    """Running brokers that apply the metadata and exchange messages.

    Attributes:
        cut_off_id: an isolated broker. No follower reaches it, but it reaches the controller.
    """

    def __init__(self, seed: int, policy: FlushPolicy) -> None:
        super().__init__(seed, policy)
        self.cut_off_id: int | None = None
        for node in self.nodes.values():
            self._name_process(node)
            node.broker_epoch = self.quorum.start_broker(node.node_id, process=node.process)
        configs = {"min.insync.replicas": str(MIN_ISR), "flush.policy": policy.value}
        self.quorum.write_topic("t", REPLICAS, configs=configs)
        self.note_version()
        for node in self.nodes.values():
            self._open(node)

    # Brokers.

    def step(self, node: Node, event: Event) -> None:
        """Give an event to a core and carry out its effects."""
        if node.core is not None:
            for effect in node.core.step(event, self.now_ms):
                if node.core is not None:
                    self._carry_out(node, node.core, effect)

    def stop(self, node: Node) -> None:
        """End a process: its streams break, and the outcomes of its proposals are lost."""
        node.core = None
        for stream in [s for s in self.streams if node.node_id in (s.follower_id, s.leader_id) and s.is_open]:
            self.break_stream(stream)
        for flight in self.proposals:
            if flight.process == node.process:
                flight.is_awaited = False

    def start_again(self, node: Node) -> None:
        """Start another process on the same log. The previous one is fenced first."""
        self.fence_broker(node)
        self._name_process(node)
        command = register(node.node_id, process=node.process, clean_stop_epoch=node.stopped_clean_epoch)
        self.quorum.run(command)
        node.stopped_clean_epoch = None
        node.broker_epoch = self.quorum.epoch(node.node_id)
        self.lossy.discard(node.node_id)
        self.unclean.discard(node.node_id)
        node.log.reopen(node.log.end)
        self.note_version()
        self._open(node)
        self.counts["restart"] += 1

    def fence_broker(self, node: Node) -> None:
        """Make the controller fence a broker."""
        self.quorum.run(FenceBroker(broker_id=node.node_id, broker_epoch=self.quorum.epoch(node.node_id)))
        self.note_version()

    def note_version(self) -> None:
        """Keep the present metadata as a version that brokers will apply."""
        brokers = {
            broker.broker_id: BrokerState(
                node_id=broker.broker_id, broker_epoch=broker.broker_epoch, can_lead=broker.can_lead
            )
            for broker in self.quorum.image.brokers.values()
        }
        version = Version(self.partition, brokers)
        if not self.versions or self.versions[-1] != version:
            self.versions.append(version)

    def hear_next(self, node: Node) -> None:
        """Apply the next version of the metadata at a broker."""
        version = self.versions[node.version]
        node.version += 1
        brokers = tuple(version.brokers[node_id] for node_id in version.partition.replicas)
        self.step(node, PartitionChanged(partition=version.partition, min_isr=MIN_ISR, brokers=brokers))

    def finish_flush(self, node: Node, end: int) -> None:
        """End a flush that covers everything below `end`."""
        node.flush_end = None
        flushed = max(node.log.flushed, min(end, node.log.end))
        node.log.flushed = flushed
        self.step(node, LogFlushed(flushed_offset=flushed))

    def _name_process(self, node: Node) -> None:
        self.processes += 1
        node.process = 1_000 + self.processes

    def _open(self, node: Node) -> None:
        node.high_watermark = min(self.random.choice((0, node.high_watermark)), node.log.end)
        node.core = PartitionReplica(
            node_id=node.node_id,
            log_end_offset=node.log.end,
            flushed_offset=node.log.flushed,
            flush_policy=self.policy,
            flush_interval_ms=1_000,
            high_watermark=node.high_watermark,
            last_epoch=node.log.last_epoch,
            lag_max_ms=LAG_MS,
        )
        node.wants_flush, node.flush_end = False, None
        node.subscriptions.clear()
        node.tokens.clear()
        # A broker serves once it has applied its own registration.
        while node.version < len(self.versions):
            known = self.versions[node.version].brokers[node.node_id].broker_epoch
            if known == node.broker_epoch:
                break
            node.version += 1
        self.hear_next(node)

    def _carry_out(self, node: Node, core: PartitionReplica, effect: Effect) -> None:
        match effect:
            case FlushLog():
                node.wants_flush = True
            case PublishHighWatermark():
                self._publish(node, core, effect.high_watermark)
            case CompleteAck():
                self.acknowledge(node, effect)
            case FailAck():
                node.tokens.pop(effect.token, None)
                self.counts[f"failed ack: {effect.reason.name}"] += 1
            case BeginLeaderEpoch():
                node.log.assign_epoch(effect.leader_epoch)
                self.counts["leadership"] += 1
            case ForgetEmptyEpoch():
                node.log.truncate(node.log.end)
            case Resign():
                self._resign(node, effect)
            case ProposeIsr():
                self.proposals.append(InFlight(node.node_id, node.process, node.broker_epoch, effect))
            case AcceptSubscription() | DivergeSubscription() | EndSubscription():
                self._answer_subscription(node, effect)
            case Subscribe():
                stream = self._stream(node, effect.leader_id)
                if stream is None:
                    ended = SubscriptionEnded(session=effect.session, error=SubscriptionError.NOT_LEADER)
                    self.step(node, ended)
                else:
                    stream.asked.add(effect.session)
                    stream.up.append(effect)
            case Unsubscribe():
                self._send_up(node, effect.leader_id, effect.session)
            case SendAck():
                for stream in self.streams:
                    if stream.is_open and stream.follower_id == node.node_id and effect.session in stream.asked:
                        stream.up.append(effect)
            case AppendBatches():
                self._append(node)
            case TruncateLog():
                self._truncate(node, effect)
            case _:
                pass

    def _resign(self, node: Node, effect: Resign) -> None:
        led = LedPartition(topic_id=topic_id("t"), partition=0, leader_epoch=effect.leader_epoch, allow_eligible=True)
        command = ResignLeadership(broker_id=node.node_id, broker_epoch=node.broker_epoch, partitions=(led,))
        response = self.quorum.run(command).response
        is_given_up = isinstance(response, LeadershipResigned) and isinstance(response.results[0], PartitionImage)
        self.counts["leader resigns" if is_given_up else "leader asks in vain"] += 1
        self.note_version()

    def _truncate(self, node: Node, effect: TruncateLog) -> None:
        assert not effect.loses_committed, f"committed: {node.node_id} is cut to {effect.to_offset}"
        self.counts["cut"] += effect.to_offset < node.log.end
        node.log.truncate(effect.to_offset)
        log = node.log
        node.flush_end = None if node.flush_end is None else min(node.flush_end, log.end)
        self.step(
            node,
            LogTruncated(
                log_end_offset=log.end, flushed_offset=log.flushed, last_epoch=log.last_epoch, log_start_offset=0
            ),
        )

    def _append(self, node: Node) -> None:
        assert node.incoming is not None
        for entry in node.incoming.entries:
            node.log.append(entry)
        self.step(node, BatchAppended(log_end_offset=node.log.end))

    def _publish(self, node: Node, core: PartitionReplica, high_watermark: int) -> None:
        below = node.log.entries[:high_watermark]
        known = len(self.committed)
        assert below[:known] == self.committed[: len(below)], (
            f"committed: {node.node_id} has others below {high_watermark}"
        )
        if high_watermark > known:
            self.committed.extend(below[known:])
            self.check_quorum(high_watermark)
        node.high_watermark = high_watermark
        if core.is_leader:
            for subscription in node.subscriptions.values():
                subscription.stream.down.append(Told(subscription.session, high_watermark))

    # Streams.

    def send_records(self, node: Node, subscription: Subscription, count: int) -> None:
        """Send some records of one leader epoch to a follower."""
        entries = node.log.entries[subscription.next_offset : subscription.next_offset + count]
        same = [entry for entry in entries if entry.epoch == entries[0].epoch]
        if same:
            subscription.stream.down.append(Pushed(subscription.session, subscription.next_offset, same))
            subscription.next_offset += len(same)

    def deliver_one(self, stream: Stream) -> None:
        """Deliver one message of a stream."""
        if stream.up and (not stream.down or self.random.random() < 0.5):
            message = stream.up.popleft()
            node = self.nodes[stream.leader_id]
            if node.core is not None and node.process == stream.leader_process:
                self._deliver_up(node, stream, message)
            return
        told = stream.down.popleft()
        node = self.nodes[stream.follower_id]
        if node.core is not None and node.process == stream.follower_process:
            self._deliver_down(node, told)

    def break_stream(self, stream: Stream) -> None:
        """Break a stream: both ends hear of it, and messages under way may still arrive."""
        stream.is_open = False
        leader, follower = self.nodes[stream.leader_id], self.nodes[stream.follower_id]
        if follower.process == stream.follower_process:
            for session in sorted(stream.asked):
                self.step(follower, SubscriptionEnded(session=session, error=SubscriptionError.STREAM_LOST))
        if leader.process == stream.leader_process:
            self._lose(leader, stream)

    def _lose(self, leader: Node, stream: Stream) -> None:
        subscription = leader.subscriptions.get(stream.follower_id)
        if subscription is not None and subscription.stream is stream:
            del leader.subscriptions[stream.follower_id]
            self.step(
                leader,
                FollowerLost(
                    node_id=stream.follower_id, broker_epoch=stream.broker_epoch, session=subscription.session
                ),
            )

    def _stream(self, node: Node, leader_id: int) -> Stream | None:
        """Return the open stream to a leader, or a new one; None if the leader does not run."""
        leader = self.nodes[leader_id]
        if leader.core is None or leader_id == self.cut_off_id:
            return None
        for stream in self.streams:
            ends = (stream.follower_id, stream.follower_process, stream.leader_id, stream.leader_process)
            if stream.is_open and ends == (node.node_id, node.process, leader_id, leader.process):
                return stream
        stream = Stream(node.node_id, leader_id, node.process, leader.process, node.broker_epoch)
        self.streams = [s for s in self.streams if s.is_open or s.up or s.down]
        self.streams.append(stream)
        return stream

    def _send_up(self, node: Node, leader_id: int, message: ToLeader) -> None:
        for stream in self.streams:
            if stream.is_open and (stream.follower_id, stream.leader_id) == (node.node_id, leader_id):
                stream.up.append(message)

    def _deliver_up(self, node: Node, stream: Stream, message: ToLeader) -> None:
        match message:
            case Subscribe():
                node.asking = message
                subscribed = FollowerSubscribed(
                    node_id=stream.follower_id,
                    session=message.session,
                    broker_epoch=stream.broker_epoch,
                    leader_epoch=message.leader_epoch,
                    log_end_offset=message.log_end_offset,
                    flushed_offset=message.flushed_offset,
                    last_epoch=message.last_epoch,
                    epoch_end=node.log.epoch_end(message.last_epoch),
                    log_start_offset=0,
                )
                self.step(node, subscribed)
                if not stream.is_open:
                    self._lose(node, stream)
            case SendAck():
                acked = FollowerAcked(
                    node_id=stream.follower_id,
                    broker_epoch=stream.broker_epoch,
                    session=message.session,
                    appended_offset=message.appended_offset,
                    flushed_offset=message.flushed_offset,
                )
                self.step(node, acked)
            case int():
                subscription = node.subscriptions.get(stream.follower_id)
                if subscription is not None and subscription.stream is stream and subscription.session == message:
                    self._lose(node, stream)

    def _answer_subscription(
        self, node: Node, effect: AcceptSubscription | DivergeSubscription | EndSubscription
    ) -> None:
        """Answer a follower, and send from its log end on if it was accepted. A newer subscription replaces an older one."""
        ends = (node.node_id, node.process, effect.node_id, effect.broker_epoch)
        for stream in self.streams:
            if ends != (stream.leader_id, stream.leader_process, stream.follower_id, stream.broker_epoch):
                continue
            if effect.session not in stream.asked:
                continue
            stream.down.append(effect)
            if isinstance(effect, AcceptSubscription):
                assert node.asking is not None
                next_offset = node.asking.log_end_offset
                node.subscriptions[effect.node_id] = Subscription(stream, effect.session, next_offset)
                continue
            found = node.subscriptions.get(effect.node_id)
            if found is not None and (found.stream is stream or isinstance(effect, DivergeSubscription)):
                del node.subscriptions[effect.node_id]

    def _deliver_down(self, node: Node, message: ToFollower) -> None:
        match message:
            case Pushed():
                node.incoming = message
                received = BatchesReceived(
                    session=message.session, base_offset=message.base_offset, leader_epoch=message.entries[0].epoch
                )
                self.step(node, received)
                node.incoming = None
            case Told():
                advanced = LeaderAdvanced(
                    session=message.session, high_watermark=message.high_watermark, log_start_offset=0
                )
                self.step(node, advanced)
            case AcceptSubscription():
                self.step(
                    node,
                    SubscriptionAccepted(
                        session=message.session, high_watermark=message.high_watermark, log_start_offset=0
                    ),
                )
            case DivergeSubscription():
                diverged = SubscriptionDiverged(
                    session=message.session,
                    leader_end=message.leader_end,
                    own_end=node.log.epoch_end(message.leader_end.epoch),
                    own_start_offset=0,
                )
                self.step(node, diverged)
            case EndSubscription():
                self.step(node, SubscriptionEnded(session=message.session, error=message.error))

    # The controller.

    def decide(self, flight: InFlight, *, is_answered: bool) -> None:
        """Carry out a proposal at the controller, and answer it if its broker still waits."""
        effect = flight.effect
        proposal = IsrProposal(
            topic_id=topic_id("t"),
            partition=0,
            leader_epoch=effect.leader_epoch,
            partition_epoch=effect.partition_epoch,
            isr=tuple((member.node_id, member.broker_epoch) for member in effect.members),
        )
        command = AlterPartition(broker_id=flight.node_id, broker_epoch=flight.broker_epoch, proposals=(proposal,))
        response = self.quorum.run(command).response
        self.note_version()
        result = response.results[0] if isinstance(response, PartitionsAltered) else response
        if isinstance(result, PartitionImage):
            self.counts["accepted proposal"] += 1
            answer: Event = ProposalAccepted(proposal=effect.proposal, partition=self.partition)
        else:
            self.counts["refused proposal"] += 1
            code = result.code if isinstance(result, Refusal) else ErrorCode.INTERNAL
            answer = ProposalRefused(proposal=effect.proposal, code=code)
        if is_answered:
            self.answer(flight, answer)

    def answer(self, flight: InFlight, answer: Event) -> None:
        """Tell a broker the outcome of its proposal, if the proposing process still runs."""
        node = self.nodes[flight.node_id]
        if node.process == flight.process:
            self.step(node, answer)
