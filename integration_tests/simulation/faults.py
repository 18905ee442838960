# SPDX-License-Identifier: Apache-2.0
"""The faults of the machines: kills, power losses, pauses, cuts, dead connections, clean shutdowns; of one, some, or all machines.

Owns when a fault happens, and to which machine. Under flush policy `ack` any machine may lose power, repeatedly, and all at once: the
policy promises to survive that. Under the other policies the page cache survives, as after `kill -9`. Voters flush before they answer,
so they may lose power at any time.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from lograft._grpc.http2_socket import Http2Socket
from lograft.types import TopicPartition

from integration_tests.simulation.last_disk import LastDisk
from integration_tests.simulation.options import WorldOptions
from integration_tests.simulation.servers import MIN_FREE_BYTES, BrokerMachine, Machine, VoterMachine
from integration_tests.simulation.virtual_network import Connection, Network
from integration_tests.simulation.virtual_rocksdb import Databases
from metaquorum.metadata.topic_configs import FlushPolicy
from metaquorum.testing.scheduler import Scheduler
from storage.testing.sim_disk import Crash

LOSSES: Final = (Crash.LOSE_ALL, Crash.TEAR, Crash.PREFIX)
"""What a power loss does to data that is not on the device."""

STRANDED_MS: Final = (6_000, 15_000)
"""Shortest and longest milliseconds for which a broker is isolated from the others: longer than followers may lag."""

TIGHT_BYTES: Final = MIN_FREE_BYTES * 3 // 4
"""Free bytes of a tight disk: below the soft limit, and far above the hard one."""
FULL_BYTES: Final = MIN_FREE_BYTES // 5
"""Free bytes of a full disk: below the hard limit, and enough for the metadata log, which continues."""


class StruckWorld(Protocol):
    """What faults need from the world."""

    scheduler: Scheduler
    network: Network
    options: WorldOptions
    counts: Counter[str]
    voters: list[VoterMachine]
    brokers: list[BrokerMachine]
    is_healed: bool
    lost_voter: VoterMachine | None
    databases: Databases

    def is_spare(self, machine: BrokerMachine) -> bool:
        """Return True if everything on a broker is in sync elsewhere, and no other machine has a fault."""
        ...

    @property
    def is_whole(self) -> bool:
        """True while all brokers serve and all replicas are in sync, as far as the brokers know."""
        ...

    def restart_client(self) -> None:
        """Kill a client and start another one."""
        ...

    def elect_uncleanly(self, partitions: Sequence[TopicPartition]) -> None:
        """Let an operator elect leaders that may lack records."""
        ...

    def strike_member(self) -> None:
        """Kill a member of a group and start another one, stop its process for a while, or reset its connections."""
        ...


class Faults:
    """Chooses which machines get faults, and when."""

    def __init__(self, world: StruckWorld) -> None:
        self._world = world
        self._rng: random.Random = world.scheduler.rng("faults")
        self._stranded: set[tuple[str, str]] = set()
        self._last_disk = LastDisk(world, world.scheduler.rng("last disk"), self._cut_power)

    @property
    def is_disk_away(self) -> bool:
        """True while the last disk is taken away, awaited or given back. That ends in a healed world too."""
        return self._last_disk.is_under_way

    def schedule(self) -> None:
        """Schedule the first fault of each kind."""
        options = self._world.options
        kinds: Sequence[tuple[int | None, Callable[[], None]]] = (
            (options.kill_every_ms, self._kill),
            (options.power_every_ms, self._lose_power),
            (options.loss_every_ms, self._lose_one),
            (options.blackout_every_ms, self._black_out),
            (options.pause_every_ms, self._pause),
            (options.cut_every_ms, self._cut),
            (options.strand_every_ms, self._strand),
            (options.stop_every_ms, self._stop),
            (options.client_kill_every_ms, self._world.restart_client),
            (options.damage_every_ms, self._damage),
            (options.directory_every_ms, self._fail_directory),
            (options.voter_loss_every_ms, self._lose_voter),
            (options.full_every_ms, self._fill),
            (options.last_disk_every_ms, self._last_disk.strike),
            (options.half_open_every_ms, self._half_open),
            *self._kinds_of_coordinators(),
        )
        for mean_ms, strike in kinds:
            if mean_ms is not None:
                self._again(mean_ms, strike)

    def _kinds_of_coordinators(self) -> Sequence[tuple[int | None, Callable[[], None]]]:
        options = self._world.options
        if not options.group_count and not options.ingest_count:
            return ()
        has_transforms = options.ingest_count > 0 and options.transform_count > 0
        return (
            (options.member_every_ms if options.group_count or has_transforms else None, self._world.strike_member),
            (options.coordinator_every_ms, self._strike_coordinator),
            (options.compact_every_ms, self._compact),
        )

    def _again(self, mean_ms: int, strike: Callable[[], None]) -> None:
        def run() -> None:
            if not self._world.is_healed:
                strike()
                self._again(mean_ms, strike)

        self._world.scheduler.after(self._rng.randint(1, 2 * mean_ms), run)

    def _one(self) -> Machine:
        """Return a random machine, mostly a broker."""
        world = self._world
        return self._rng.choice(world.brokers if self._rng.random() < 0.7 else world.voters)

    def _later(self, action: Callable[[], None]) -> None:
        self._world.scheduler.after(self._rng.randint(1, self._world.options.down_ms_max), action)

    def _kill(self) -> None:
        machine = self._one()
        if machine.is_up:
            self._count(machine, "kill")
            machine.kill()
            self._later(machine.start)

    def _lose_power(self) -> None:
        machine = self._one()
        self._count(machine, "power loss")
        self._cut_power(machine)
        self._later(machine.start)

    def _cut_power(self, machine: Machine) -> None:
        """Lose data that is not on the device, in one of several ways."""
        how = self._rng.choice(LOSSES)
        self._world.counts["crash that loses unflushed data"] += machine.has_unflushed
        self._world.counts["torn write"] += machine.has_unflushed and how is not Crash.LOSE_ALL
        machine.lose_power(how)

    def _lose_one(self) -> None:
        """Let one broker lose its data while two others have it too. Half of the time all brokers are killed with it.

        Then that broker starts first. Without flushes, the controller treats the last broker that returns as the one with the most
        data.
        """
        world = self._world
        machine = self._rng.choice(world.brokers)
        if not world.is_spare(machine):
            return
        if self._rng.random() < 0.5:
            world.counts["all killed, one loses"] += 1
            world.counts["all brokers stopped at once"] += 1
            for other in world.brokers:
                if other is not machine:
                    other.kill()
                    other.wait_for(machine)
        if world.options.flush_policy is FlushPolicy.ACK or self._rng.random() < 0.3:
            world.counts["disk wiped"] += 1
            machine.wipe()
        else:
            self._count(machine, "power loss")
            self._cut_power(machine)
        self._later(machine.start)

    def _lose_voter(self) -> None:
        """Let a voter lose its disk, whatever its role is and wherever the others are, but not before the last replacement votes."""
        world = self._world
        if world.lost_voter is None:
            machine = world.lost_voter = self._rng.choice(world.voters)
            self._count(machine, "disk wiped")
            machine.wipe()
            self._later(machine.start)

    def _damage(self) -> None:
        """Kill one broker, always the same, while its data is elsewhere, and flip a bit of its records."""
        world = self._world
        machine = world.brokers[0]
        if world.is_spare(machine):
            machine.kill()
            world.counts["bit flip"] += machine.damage()
            self._later(machine.start)

    def _fail_directory(self) -> None:
        """Let the second disk of a broker fail. Later it is mended, and the broker is started again."""
        machine = self._rng.choice(self._world.brokers)
        if machine.fail_second():
            self._count(machine, "log directory failed")
            self._later(lambda: self._mend_directory(machine))

    def _mend_directory(self, machine: BrokerMachine) -> None:
        """Mend the disk with its data on the device, or replace it by an empty one if two others have everything."""
        world = self._world
        is_replaced = world.options.min_isr == 2 and self._rng.random() < 0.5 and world.is_spare(machine)
        if machine.mend_second(None if is_replaced else self._rng.choice(LOSSES)):
            self._count(machine, "log directory replaced" if is_replaced else "log directory mended")
            self._later(machine.start)

    def _fill(self) -> None:
        """Leave a broker's disk little space, so that it refuses clients' appends, or so little that only the metadata log grows."""
        machine = self._rng.choice(self._world.brokers)
        room_bytes = self._rng.choice((TIGHT_BYTES, FULL_BYTES))
        if machine.fill(room_bytes):
            self._count(machine, "disk full")
            if room_bytes == FULL_BYTES:
                # The real database of the image would need more space than that.
                self._world.databases.fill(machine.name)
            self._later(machine.make_room)

    def _black_out(self) -> None:
        """Strike all brokers, or all machines."""
        world = self._world
        machines: list[Machine] = [*world.brokers]
        if self._rng.random() < 0.4:
            machines += world.voters
        world.counts["all brokers stopped at once"] += 1
        has_power = world.options.flush_policy is not FlushPolicy.ACK or self._rng.random() < 0.3
        for machine in machines:
            if has_power:
                machine.kill()
            else:
                self._cut_power(machine)
            self._later(machine.start)

    def _pause(self) -> None:
        machine = self._one()
        if machine.is_up and not machine.is_paused:
            self._count(machine, "pause")
            machine.pause(self._rng.randint(1, self._world.options.down_ms_max))

    def _stop(self) -> None:
        machine = self._one()
        if machine.is_up and not machine.is_stopping:
            self._count(machine, "stop")
            machine.stop()

    def _cut(self) -> None:
        """Cut some machines off from some others, one way or both, for a while."""
        world, rng = self._world, self._rng
        machines = [machine.name for machine in (*world.voters, *world.brokers)]
        some = rng.sample(machines, rng.choice((1, 1, 1, len(machines) // 2)))
        kind = rng.choice(("", "", "broker", "voter"))
        others = [name for name in machines if name not in some and name.startswith(kind)]
        if rng.random() < 0.3:
            others.append("client")
        way = rng.choice(("both", "both", "to", "from"))
        for one in some:
            for other in others:
                if way != "from":
                    world.network.cut(one, other)
                if way != "to":
                    world.network.cut(other, one)
        world.counts["cut"] += 1
        self._later(lambda: world.network.heal(self._stranded))

    def _strand(self) -> None:
        """Isolate one broker from the other brokers for longer than followers may lag. It still reaches voters and clients."""
        world, rng = self._world, self._rng
        if self._stranded:
            return
        one = rng.choice(world.brokers)
        others = [broker.name for broker in world.brokers if broker is not one]
        self._stranded.update(pair for other in others for pair in ((one.name, other), (other, one.name)))
        for sender, receiver in sorted(self._stranded):
            world.network.cut(sender, receiver)
        world.counts["stranded broker"] += 1

        def heal() -> None:
            self._stranded.clear()
            world.network.heal()

        world.scheduler.after(rng.randint(*STRANDED_MS), heal)

    def _half_open(self) -> None:
        """Make open connections swallow everything, one way or both: one connection, or all of a server. New ones work."""
        world, rng = self._world, self._rng
        there = [
            each
            for each in world.network.connections()
            if each.is_established and not each.is_forgotten and each.client is not each.server
        ]
        machine = self._one().name
        if rng.random() < 0.5:
            there = [each for each in there if machine in (each.client.machine, each.server.machine)]
        elif there:
            there = [rng.choice(there)]
            machine = there[0].server.machine
        way = rng.choice(("both", "both", "to", "from"))
        for connection in there:
            near = connection.server if connection.server.machine == machine else connection.client
            far = connection.other(near)
            connection.forget(*{"both": (near, far), "to": (near,), "from": (far,)}[way])
            world.counts["half-open connection of gRPC" if _is_grpc(connection) else "half-open link"] += 1
        world.counts["half-open strike"] += bool(there)

    def _strike_coordinator(self) -> None:
        """Kill or pause a broker that coordinates groups or ingests."""
        world, rng = self._world, self._rng
        found = [broker for broker in world.brokers if broker.is_coordinating and not broker.is_paused]
        if not found:
            return
        broker = rng.choice(found)
        # Without flushes, one broker may lose what others have: they must keep their page caches, and live.
        is_lasting = world.options.loss_every_ms is not None and world.options.flush_policy is not FlushPolicy.ACK
        if not is_lasting and rng.random() < 0.5:
            world.counts["coordinator killed"] += 1
            broker.kill()
            self._later(broker.start)
        else:
            world.counts["coordinator paused"] += 1
            broker.pause(rng.randint(1, world.options.down_ms_max))

    def _compact(self) -> None:
        world = self._world

        def count(passes: int) -> None:
            world.counts["compaction of __groups"] += passes

        self._rng.choice(world.brokers).compact(count)

    def _count(self, machine: Machine, what: str) -> None:
        self._world.counts[f"{what} of a {machine.name.partition('-')[0]}"] += 1


def _is_grpc(connection: Connection) -> bool:
    return any(isinstance(end.get_protocol(), Http2Socket) for end in connection.ends.values())
