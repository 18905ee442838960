# SPDX-License-Identifier: Apache-2.0
"""Faults of the simulated machines: crashes, shutdowns, pauses, network cuts, moves, and bad disks.

Owns when a fault strikes and which machine; the node, network or disk itself knows what the fault does.
Fault budget: a disk is lost (`wipe`) or damaged only while every voter agrees on the voter set and none of them is lost or damaged
(`SimOperator.disk_to_lose`). Until its key has left the voters, no other voter is removed. A machine with a damaged disk may continue
until it finds the damage: then it refuses to start, or stops, and comes back with an empty disk as another replica. A voter moves to
another address only while it could also be lost, and until the others know the new address, no other voter is lost or removed.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Final, Protocol

from metaquorum.raft.events import Event, ShutdownRequested
from metaquorum.raft.messages import Request
from metaquorum.raft.types import ReplicaKey
from metaquorum.raft.voters import VoterSet, voter_set
from metaquorum.replica.log_store import DamagedLogError
from metaquorum.testing.forgeries import absurd_epoch, forge
from metaquorum.testing.invariants import require
from metaquorum.testing.options import SimOptions
from metaquorum.testing.scheduler import Scheduler
from metaquorum.testing.sim_log import DamagedDiskError, SimDisk
from metaquorum.testing.sim_network import SimNetwork
from metaquorum.testing.sim_node import CLUSTER_ID, SimNode
from metaquorum.testing.sim_operator import SimOperator
from metaquorum.testing.sim_store import StoredDisk
from metaquorum.testing.sim_trouble import Damage, Trouble
from storage.errors import DataLossError

EPOCH_MS: Final = 1_700_000_000_000
"""Wall clock at the beginning of a run."""

DAMAGES: Final = (*Damage, Damage.BATCH)
"""Kinds of damage; the likeliest one occurs twice."""


class StruckWorld(Protocol):
    """The part of the world that faults need."""

    scheduler: Scheduler
    options: SimOptions
    counts: Counter[str]
    nodes: list[SimNode]
    disks: dict[ReplicaKey, SimDisk]
    operator: SimOperator
    is_healed: bool

    def start(self, node: SimNode) -> None:
        """Start a machine that is down."""
        ...

    def hand_over(self, node: SimNode, event: Event) -> None:
        """Step a node with an event when it is awake."""
        ...

    def read_at(self, node: SimNode) -> None:
        """Ask one machine what is committed."""
        ...

    def deliver_forged(self, node: SimNode, request: Request) -> None:
        """Deliver a request to a machine that no other machine sent."""
        ...

    def forget_client(self, node: SimNode) -> None:
        """Forget what a machine has not acknowledged: it never will."""
        ...


class SimFaults:
    """All faults of one run.

    Attributes:
        rng: random stream of the faults.
        damaged: replicas whose disk lost something that had been flushed.
        old_addresses: addresses that no machine has any more.
    """

    def __init__(self, world: StruckWorld, network: SimNetwork) -> None:
        self._world = world
        self._network = network
        self.rng: random.Random = world.scheduler.rng("faults")
        self.damaged: set[ReplicaKey] = set()
        self.old_addresses: set[str] = set()
        self._moving: SimNode | None = None
        self._wipe_count = 0

    def make_disk(self, key: ReplicaKey) -> SimDisk:
        """Return the disk of a new machine."""
        scheduler, options = self._world.scheduler, self._world.options
        if not options.real_files:
            return SimDisk()
        return StoredDisk(
            key,
            scheduler.rng(f"files/{key.node_id}/{key.directory_id!r}"),
            trouble=Trouble(power_loss=options.power_loss, refusal=options.refusal),
            clock=lambda: EPOCH_MS + scheduler.now_ms,
        )

    def schedule(self) -> None:
        """Start all faults of this run."""
        options, operator = self._world.options, self._world.operator
        self._repeat(options.crash_every_ms, self._crash)
        self._repeat(options.shutdown_every_ms, self._shut_down)
        self._repeat(options.cut_every_ms, self._cut)
        self._repeat(options.pause_every_ms, self._pause)
        self._repeat(options.change_every_ms, operator.change_voters)
        self._repeat(options.transfer_every_ms, operator.transfer_leadership)
        self._repeat(options.damage_every_ms, self._damage)
        self._repeat(options.move_every_ms, self._move)
        self._repeat(options.forge_every_ms, self._forge)
        if options.wipe:
            self._world.scheduler.after(self.rng.randint(1_000, 8_000), self._wipe)

    def heal(self) -> None:
        """End the faults of all disks; damage stays."""
        for node in self._world.nodes:
            if isinstance(node.disk, StoredDisk):
                node.disk.trouble = Trouble()

    def _repeat(self, mean_ms: int | None, fault: Callable[[], None]) -> None:
        if mean_ms is None:
            return

        def strike() -> None:
            if not self._world.is_healed:
                fault()
                self._world.scheduler.after(self.rng.randint(1, 2 * mean_ms), strike)

        self._world.scheduler.after(self.rng.randint(1, 2 * mean_ms), strike)

    def restart_later(self, node: SimNode) -> None:
        """Start a machine again after a while."""
        delay_ms = self.rng.randint(1, self._world.options.down_ms_max)
        self._world.scheduler.after(delay_ms, lambda: self._start(node))

    def _start(self, node: SimNode) -> None:
        if node in self._world.nodes:
            self._world.start(node)

    def _pick(self) -> SimNode:
        """Return a random machine, half of the time a leader."""
        leaders = [node for node in self._world.nodes if node.is_leader]
        return self.rng.choice(leaders if leaders and self.rng.random() < 0.5 else self._world.nodes)

    def _crash(self) -> None:
        node = self._pick()
        if node.is_up:
            self._world.counts["crash"] += 1
            node.stop()
            self.restart_later(node)

    def _shut_down(self) -> None:
        node = self._pick()
        if node.is_up:
            self._world.hand_over(node, ShutdownRequested())
            self._restart_when_down(node)

    def _restart_when_down(self, node: SimNode) -> None:
        """Poll until the orderly shutdown is over, then start again."""
        if node.is_up and not self._world.is_healed:
            self._world.scheduler.after(50, lambda: self._restart_when_down(node))
        elif not node.is_up:
            self.restart_later(node)

    def _cut(self) -> None:
        world = self._world
        if len(world.nodes) < 2:
            return
        victim = self._pick()
        others = [node for node in world.nodes if node is not victim]
        outward = [(victim.name, node.name) for node in others]
        inward = [(node.name, victim.name) for node in others]
        single = self.rng.choice(others)
        kind = self.rng.randrange(4)
        links = [outward + inward, outward, inward, [(victim.name, single.name)]][kind]
        world.counts["cut, both ways" if kind == 0 else "cut, one way"] += 1
        self._network.cut(links, self.rng.randint(1, 2 * world.options.down_ms_max))

    def _pause(self) -> None:
        node, world = self._pick(), self._world
        world.counts["pause"] += 1
        pause_ms = self.rng.randint(1, world.options.down_ms_max)
        node.paused_until_ms = world.scheduler.now_ms + pause_ms
        # The first event after the pause is a read: a leader that was replaced in between must not answer from memory.
        world.scheduler.after(pause_ms, lambda: world.read_at(node))

    def _forge(self) -> None:
        node, world = self._pick(), self._world
        if node.raft is None:
            return
        others = [other.key for other in world.nodes if other is not node] or [node.key]
        epoch = absurd_epoch(self.rng, node.raft.state.quorum_epoch)
        world.counts["absurd epoch forged"] += 1
        world.deliver_forged(node, forge(self.rng, node.key, others, cluster_id=CLUSTER_ID, epoch=epoch))

    # Disks.

    def _wipe(self) -> None:
        """Let a voter lose its disk. It comes back with a new directory id: another replica, so an observer."""
        if self._world.is_healed:
            return
        node = self._world.operator.disk_to_lose(self.damaged)
        if node is None:
            # The voters are changing, or too few to lose one.
            self._world.scheduler.after(100, self._wipe)
            return
        self._world.counts["wipe"] += 1
        if node.is_up:
            node.stop()
        self._replace(node)

    def _replace(self, node: SimNode) -> None:
        """Replace a machine by one with an empty disk."""
        world = self._world
        self._wipe_count += 1
        directory_id = b"wiped-%05d-%04d" % (node.key.node_id, self._wipe_count)
        key = ReplicaKey(node_id=node.key.node_id, directory_id=directory_id)
        fresh = SimNode(
            world,  # pyright: ignore[reportArgumentType]
            key=key,
            name=node.name,
            initial_voters=voter_set([]),
            addresses=tuple(other.address for other in world.nodes),
            disk=self.make_disk(key),
        )
        fresh.address = node.address
        world.nodes[world.nodes.index(node)] = fresh
        # The lost disk stays in `disks`: its content counts as held, by a voter that is down for good.
        world.disks[fresh.key] = fresh.disk
        if world.is_healed and isinstance(fresh.disk, StoredDisk):
            fresh.disk.trouble = Trouble()
        world.forget_client(node)
        world.operator.on_stop(node)
        self.restart_later(fresh)

    def _damage(self) -> None:
        """Flip a bit on the disk of a voter and end its process as by `kill -9`, so that everything written stays."""
        kind = self.rng.choice(DAMAGES)
        node = self._pick() if kind is Damage.VOTE_COPY else self._world.operator.disk_to_lose(self.damaged)
        if node is None or not node.is_up or not isinstance(node.disk, StoredDisk) or node.key in self.damaged:
            return
        disk = node.disk
        node.stop(lambda: self._flip(node, disk, kind))
        self.restart_later(node)

    def _flip(self, node: SimNode, disk: StoredDisk, kind: Damage) -> None:
        if disk.damage(kind, self.rng):
            self._world.counts["bit flip"] += 1
            self._world.counts[f"bit flip in {kind.value}"] += 1
            if kind is not Damage.VOTE_COPY:
                self.damaged.add(node.key)

    def on_damaged_disk(self, node: SimNode, error: DamagedDiskError) -> None:
        """Replace the disk of a machine that refuses to start or continue; only damage may cause that."""
        require(node.key in self.damaged, "no crash leaves a disk that its node refuses", (node.key, error))
        self._replace(node)

    def compare_files(self) -> None:
        """Check at the end that every log is, byte for byte, what was written. Damage that no node has read is found now."""
        for node in self._world.nodes:
            if isinstance(node.disk, StoredDisk):
                try:
                    node.disk.require_all()
                except (DataLossError, DamagedLogError) as error:
                    require(node.key in self.damaged, "only damage destroys what was written", (node.key, error))
                    self._world.counts["damage found at the end"] += 1

    # Addresses.

    @property
    def is_moving(self) -> bool:
        """True while a voter has moved and a running node does not know it yet: until then the voter can ask, but not be asked.

        A careful operator waits for observers, too: an observer that missed the moves of all voters would find none of them again.
        """
        moving = self._moving
        voters = None if moving is None else self._world.operator.agreed_voters()
        running = [node.raft.state.voter_set for node in self._world.nodes if node.raft is not None]
        if moving is not None and voters is not None and all(map(self.knows_addresses, [voters, *running])):
            self._world.counts["address move"] += 1
            self._moving = None
        return self._moving is not None

    def _move(self) -> None:
        """Restart a voter at another address; it reports the address itself."""
        world = self._world
        node = None if self.is_moving or not self._is_known_by_all() else world.operator.disk_to_lose(self.damaged)
        if node is None or not node.is_up:
            return
        self._moving = node
        node.stop()
        self.old_addresses.add(node.address)
        node.address = f"{node.name}.{len(self.old_addresses)}"
        for other in world.nodes:
            # Every process that starts from now on is configured with all current addresses.
            other.bootstrap_addresses = tuple(one.address for one in world.nodes)
        self.restart_later(node)

    def _is_known_by_all(self) -> bool:
        """Return whether all running nodes have the current voters: a node that lags may know only the voter that is about to move."""
        voters = self._world.operator.agreed_voters()
        running = [node.raft.state.voter_set for node in self._world.nodes if node.raft is not None]
        return voters is not None and all(each == voters for each in running)

    def knows_addresses(self, voters: VoterSet) -> bool:
        """Return whether a voter set has the current address of each of its machines."""
        addresses = {node.key: node.address for node in self._world.nodes}
        return all(addresses.get(voter.key, voter.address) == voter.address for voter in voters.voters)
