# SPDX-License-Identifier: Apache-2.0
"""The in-sync replicas as a leader must count them: committed ones, and proposed ones with an open outcome.

Theory of operation. One proposal is under way at a time. Until its outcome is known, the controller may have accepted
it. So its members count together with the committed ones: the *maximal* in-sync replicas. A refused proposal was not
carried out and never will be, so its members leave. Without an answer they stay *open*, because the request may still
reach a controller. A higher partition epoch ends that for all of them, because a proposal changes only the partition
epoch that it names. A new registration of a member ends it for that member, because a proposal names the broker epoch
of each member.

A *fenced* proposal named an old state. The newer state is committed and on its way, and the next proposal must wait for
it.

Laws
    The controller's in-sync replicas are always among the maximal ones.
    At least `ISR_RETRY_MIN_MS` pass between two proposals that were not accepted.
    A fenced partition epoch is never proposed again.
Source: KIP-497; KIP-841; KIP-903; Vanlightly, kafka-tlaplus, ReplicationQuorumSuperset.
"""

from __future__ import annotations

from brokerd.limits import ISR_RETRY_MAX_MS, ISR_RETRY_MIN_MS
from brokerd.partition.effects import ProposedMember, ProposeIsr
from metaquorum.metadata.isr import needed_in_sync
from metaquorum.metadata.state import PartitionImage


class IsrState:
    """The in-sync replicas of one leadership.

    Attributes:
        partition: the committed state.
        is_waiting: True from a fenced proposal until a newer state is known.
        needed: how many replicas must be in sync before anything is committed.
        maximal: node ids of the maximal in-sync replicas, in the order of the replicas.
        proposal_count: number of the last proposal.
    """

    __slots__ = (
        "_open_members",
        "_pending",
        "_retry_after_ms",
        "_retry_ms",
        "is_waiting",
        "maximal",
        "needed",
        "partition",
        "proposal_count",
    )

    def __init__(self, partition: PartitionImage, *, min_isr: int, proposal_count: int) -> None:
        self.partition = partition
        self.needed = needed_in_sync(partition, min_isr)
        self.maximal = partition.isr
        self.proposal_count = proposal_count
        self._pending: ProposeIsr | None = None
        # Members of unanswered proposals for this partition epoch, with the broker epochs that these named.
        self._open_members: dict[int, int | None] = {}
        self._retry_ms = ISR_RETRY_MIN_MS
        self._retry_after_ms: int | None = None
        self.is_waiting = False

    @property
    def is_below_min(self) -> bool:
        """True while too few replicas are in sync to commit anything."""
        return len(self.partition.isr) < self.needed

    @property
    def is_proposing(self) -> bool:
        """True while the outcome of a proposal is open."""
        return self._pending is not None

    def deadline_ms(self) -> int | None:
        """Return when the next proposal may be made, if only time prevents it; else None."""
        return self._retry_after_ms

    def may_propose(self, now_ms: int) -> bool:
        """Tell whether a proposal may be made now."""
        if self._retry_after_ms is not None and now_ms >= self._retry_after_ms:
            self._retry_after_ms = None
        return self._pending is None and not self.is_waiting and self._retry_after_ms is None

    def take_state(self, partition: PartitionImage, *, min_isr: int) -> None:
        """Apply a committed state of this leadership."""
        self.needed = needed_in_sync(partition, min_isr)
        if partition.partition_epoch == self.partition.partition_epoch:
            return
        self.partition = partition
        # All proposals were for an earlier partition epoch: they are part of this state, or will never be carried out.
        self._pending = None
        self._open_members.clear()
        self._retry_ms, self._retry_after_ms = ISR_RETRY_MIN_MS, None
        self.is_waiting = False
        self._count_maximal()

    def propose(self, members: tuple[ProposedMember, ...]) -> ProposeIsr:
        """Begin a proposal; its members count from now on."""
        assert self._pending is None, f"{self._pending} is under way"
        self.proposal_count += 1
        self._pending = ProposeIsr(
            proposal=self.proposal_count,
            leader_epoch=self.partition.leader_epoch,
            partition_epoch=self.partition.partition_epoch,
            members=members,
        )
        self._count_maximal()
        return self._pending

    def note_fenced(self, proposal: int) -> None:
        """Note that a proposal was fenced: it named an old epoch, and a newer state is committed."""
        if self._pending is not None and self._pending.proposal == proposal:
            self._pending = None
            self.is_waiting = True
            self._count_maximal()

    def note_outcome(self, proposal: int, *, is_refused: bool, now_ms: int) -> None:
        """Note that a proposal was refused for another reason, or that its outcome is unknown."""
        pending = self._pending
        if pending is None or pending.proposal != proposal:
            return
        self._pending = None
        if not is_refused:
            self._open_members.update((member.node_id, member.broker_epoch) for member in pending.members)
        self._retry_after_ms = now_ms + self._retry_ms
        self._retry_ms = min(2 * self._retry_ms, ISR_RETRY_MAX_MS)
        self._count_maximal()

    def note_broker_epoch(self, node_id: int, broker_epoch: int) -> None:
        """Note a registration: the controller will refuse proposals that name an earlier one of the broker."""
        named = self._open_members.get(node_id)
        if named is not None and named < broker_epoch:
            del self._open_members[node_id]
            self._count_maximal()

    def _count_maximal(self) -> None:
        proposed = () if self._pending is None else tuple(member.node_id for member in self._pending.members)
        self.maximal = tuple(
            node_id
            for node_id in self.partition.replicas
            if node_id in self.partition.isr or node_id in proposed or node_id in self._open_members
        )
