# SPDX-License-Identifier: Apache-2.0
"""Three replicas, the controller's core, and everything that can go wrong between them, by seed.

The cores of the partition and of the controller are the real ones. Between them are brokers that apply the metadata late, streams that
break and whose messages arrive after that, slow flushes, and proposals that are unanswered, lost, or carried out long after their
broker stopped waiting. Processes are killed with or without the page cache, brokers are fenced, and leaderships move.

Fault budget: under `none` a process, or its machine, is killed only while another in-sync or eligible replica has not been killed since
the controller last saw it start. Under `ack` all may be killed at once.

`replication_laws.py` has the laws.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from brokerd.partition.events import AckLevel, AckWanted, BatchAppended, Tick
from brokerd.partition.leader_events import ProposalUnanswered
from brokerd.tests.replication_cluster import LAG_MS, Cluster
from brokerd.tests.replication_laws import REPLICAS
from brokerd.tests.replication_nodes import Entry
from metaquorum.controller.commands import ElectionKind, ElectionTarget, ElectLeaders
from metaquorum.metadata.topic_configs import FlushPolicy

LATE_SHARES = (0.02, 0.1, 0.3)
"""Share of the messages that arrive from a broken stream, by seed."""

_Thing = TypeVar("_Thing")


class Model(Cluster):
    """A cluster with random events and faults."""

    def run(self, steps: int, faults: int) -> None:
        """Run random steps, and check the laws after each. `faults` multiplies the frequency of faults."""
        kinds = (
            (self.append, 14),
            (self.push, 30),
            (self.deliver, 80),
            (self.flush, 40 if self.policy is FlushPolicy.ACK else 4),
            (self.pass_time, 8),
            (self.hear, 24 * faults),
            (self.control, 16 * faults),
            (self.fence, faults),
            (self.unfence, 10 * faults),
            (self.crash, faults),
            (self.restart, 4 * faults),
            (self.cut_stream, faults),
            (self.elect, faults),
        )
        self.late_share = self.random.choice(LATE_SHARES)
        names, weights = [kind for kind, _ in kinds], [weight for _, weight in kinds]
        for kind in self.random.choices(names, weights, k=steps):
            kind()
            self.check()

    def heal(self, rounds: int = 400) -> None:
        """End all faults, and require that everything is in sync, equal and committed."""
        for node in self.nodes.values():
            if node.core is None:
                self.start_again(node)
        for _ in range(rounds):
            for node_id in REPLICAS:
                self.quorum.beat(node_id)
            self.note_version()
            self.now_ms += 20
            for node in self.nodes.values():
                while node.version < len(self.versions):
                    self.hear_next(node)
                self.step(node, Tick())
                self.finish_flush(node, node.log.end)
                for subscription in list(node.subscriptions.values()):
                    self.send_records(node, subscription, 8)
            for stream in list(self.streams):
                while stream.up or stream.down:
                    self.deliver_one(stream)
            while self.proposals:
                self.decide(self.proposals.pop(0), is_answered=True)
            self.check()
            if self._is_healed():
                return
        raise AssertionError(
            f"not healed: {self.partition} {[(n.log.end, n.high_watermark) for n in self.nodes.values()]}"
        )

    def _is_healed(self) -> bool:
        ends = {node.log.end for node in self.nodes.values()} | {node.high_watermark for node in self.nodes.values()}
        return len(ends) == 1 and len(self.partition.isr) == len(REPLICAS)

    # Random events.

    def append(self) -> None:
        """Send a record of a client to a leader, or to a broker that believes it leads."""
        node = self._some(node for node in self.nodes.values() if node.core is not None and node.core.is_leader)
        if node is None or node.core is None or node.core.leader_epoch is None:
            return
        level = AckLevel.ALL if self.random.random() < 0.8 else AckLevel.LEADER
        if level is AckLevel.ALL and node.core.is_below_min_isr:
            self.counts["refused before the append"] += 1
            return
        self.values += 1
        offset = node.log.end
        node.log.append(Entry(node.core.leader_epoch, self.values))
        self.step(node, BatchAppended(log_end_offset=node.log.end))
        node.token_count += 1
        if level is AckLevel.ALL:
            node.tokens[node.token_count] = offset
        self.step(node, AckWanted(token=node.token_count, next_offset=offset + 1, level=level))

    def push(self) -> None:
        """Send some of the records that a follower lacks."""
        node = self._some(node for node in self.nodes.values() if node.subscriptions)
        if node is not None:
            self.send_records(node, self.random.choice(list(node.subscriptions.values())), self.random.randint(1, 4))

    def deliver(self) -> None:
        """Deliver a message, in the order of its stream."""
        is_late = self.random.random() < self.late_share
        stream = self._some(s for s in self.streams if s.is_open is not is_late and (s.up or s.down))
        if stream is not None:
            self.counts["late message"] += is_late
            self.deliver_one(stream)

    def flush(self) -> None:
        """Begin or end a flush, which covers what was in the log when it began."""
        node = self._some(node for node in self.nodes.values() if node.core is not None)
        if node is None:
            return
        if node.flush_end is not None:
            self.finish_flush(node, node.flush_end)
        elif node.wants_flush or self.random.random() < 0.1:
            node.wants_flush, node.flush_end = False, node.log.end

    def pass_time(self) -> None:
        """Let time pass, and tick the cores that asked for it."""
        self.now_ms += self.random.choice((1, 10, 60, LAG_MS + 1))
        for node in self.nodes.values():
            deadline_ms = None if node.core is None else node.core.deadline_ms()
            if deadline_ms is not None and deadline_ms <= self.now_ms:
                self.step(node, Tick())

    def hear(self) -> None:
        """Apply the next change of the metadata at a broker."""
        node = self._some(n for n in self.nodes.values() if n.core is not None and n.version < len(self.versions))
        if node is not None:
            self.hear_next(node)

    def control(self) -> None:
        """Let a proposal reach the controller, or let its broker stop waiting, or both."""
        flight = self._some(self.proposals)
        if flight is None:
            return
        if flight.is_awaited and self.random.random() < 0.15:
            flight.is_awaited = False
            self.counts["unanswered proposal"] += 1
            self.answer(flight, ProposalUnanswered(proposal=flight.effect.proposal))
        elif flight.is_awaited or self.random.random() < 0.2:
            self.proposals.remove(flight)
            self.decide(flight, is_answered=flight.is_awaited)

    def fence(self) -> None:
        """Let the controller miss a broker's heartbeats."""
        node = self.nodes[self.random.choice(REPLICAS)]
        self.fence_broker(node)
        self.counts["fence"] += 1

    def unfence(self) -> None:
        """Send a heartbeat of a running broker."""
        node = self._some(node for node in self.nodes.values() if node.core is not None)
        if node is not None:
            self.quorum.beat(node.node_id)
            self.note_version()

    def crash(self) -> None:
        """End a process: cleanly, killed, or with its page cache lost."""
        node = self._some(node for node in self.nodes.values() if node.core is not None)
        if node is None:
            return
        self.stop(node)
        others = {*self.partition.isr, *self.partition.elr} - self.unclean - {node.node_id}
        is_flush_counted = self.policy is FlushPolicy.ACK
        kind = self.random.choice(("clean", "kill", "power")) if is_flush_counted or others else "clean"
        if kind == "clean":
            node.log.flushed = node.log.end
            node.stopped_clean_epoch = node.broker_epoch
            return
        self.unclean.add(node.node_id)
        if kind == "power":
            self.counts["stop that loses records"] += node.log.flushed < node.log.end
            node.log.truncate(self.random.randint(node.log.flushed, node.log.end))
            if not is_flush_counted:
                self.lossy.add(node.node_id)
                self.ever_lossy.add(node.node_id)

    def restart(self) -> None:
        """Start a process where one ended."""
        node = self._some(node for node in self.nodes.values() if node.core is None)
        if node is not None:
            self.start_again(node)

    def cut_stream(self) -> None:
        """Break a stream. One end hears of it before the other."""
        stream = self._some(stream for stream in self.streams if stream.is_open)
        if stream is not None:
            self.counts["broken stream"] += 1
            self.break_stream(stream)

    def elect(self) -> None:
        """Move the leadership back to the first replica, as an operator does."""
        target = ElectionTarget(topic="t", partitions=(0,))
        self.quorum.run(ElectLeaders(kind=ElectionKind.PREFERRED, targets=(target,)))
        self.note_version()

    def _some(self, things: Iterable[_Thing]) -> _Thing | None:
        found = list(things)
        return self.random.choice(found) if found else None
