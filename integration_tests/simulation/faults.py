# SPDX-License-Identifier: Apache-2.0
"""What strikes the machines of the world: kills, losses of power, pauses, cuts, dead connections, orderly stops; of one, some, or all.

Owns when and whom. Under flush policy `ack` the power may go anywhere, again and again, and everywhere at once: that is what the
policy promises to survive. Under the others the page cache survives, as it does `kill -9`. Voters flush before they answer, so that
theirs may go at any time.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from integration_tests.simulation.last_disk import LastDisk
from integration_tests.simulation.options import WorldOptions
from integration_tests.simulation.servers import MIN_FREE_BYTES, BrokerMachine, Machine, VoterMachine
from integration_tests.simulation.virtual_network import Network
from integration_tests.simulation.virtual_rocksdb import Databases
from metaquorum.metadata.topic_configs import FlushPolicy
from metaquorum.testing.scheduler import Scheduler
from storage.testing.sim_disk import Crash

LOSSES: Final = (Crash.LOSE_ALL, Crash.TEAR, Crash.PREFIX)
"""What a loss of power does to what is not on the device."""

STRANDED_MS: Final = (6_000, 15_000)
"""Shortest and longest milliseconds that a broker is cut off from the others: more than followers may lag."""

TIGHT_BYTES: Final = MIN_FREE_BYTES * 3 // 4
"""Room on a disk that is tight: below the soft limit, and far above the hard one."""
FULL_BYTES: Final = MIN_FREE_BYTES // 5
"""Room on a disk that is full: below the hard limit, and enough for the metadata log, which goes on."""


class StruckWorld(Protocol):
    """What faults need of the world."""

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
        """Tell whether all that a broker has is in sync elsewhere, and nobody else is in trouble."""
        ...

    @property
    def is_whole(self) -> bool:
        """True while all brokers serve and all replicas are in sync, by what the brokers were last told."""
        ...

    def restart_client(self) -> None:
        """Kill a client, and start another one."""
        ...


class Faults:
    """Chooses what strikes the machines of a world, and when."""

    def __init__(self, world: StruckWorld) -> None:
        self._world = world
        self._rng: random.Random = world.scheduler.rng("faults")
        self._stranded: set[tuple[str, str]] = set()
        self._last_disk = LastDisk(world, world.scheduler.rng("last disk"), self._cut_power)

    @property
    def is_disk_away(self) -> bool:
        """True while the last disk is taken away, awaited or given back; that ends in a healed world too."""
        return self._last_disk.is_under_way

    def schedule(self) -> None:
        """Begin."""
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
        )
        for mean_ms, strike in kinds:
            if mean_ms is not None:
                self._again(mean_ms, strike)

    def _again(self, mean_ms: int, strike: Callable[[], None]) -> None:
        def run() -> None:
            if not self._world.is_healed:
                strike()
                self._again(mean_ms, strike)

        self._world.scheduler.after(self._rng.randint(1, 2 * mean_ms), run)

    def _one(self) -> Machine:
        """A machine, mostly one of a broker."""
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
        """Lose what is not on the device, in one way or another."""
        how = self._rng.choice(LOSSES)
        self._world.counts["crash that loses unflushed data"] += machine.has_unflushed
        self._world.counts["torn write"] += machine.has_unflushed and how is not Crash.LOSE_ALL
        machine.lose_power(how)

    def _lose_one(self) -> None:
        """Let one broker lose what it has, when two others have it too; half of the time all are killed with it.

        Then it comes back first: where nothing is flushed the controller takes the last that comes back for the one that has the most.
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
        """Let a voter lose its disk, whoever it is and wherever the others are; not before the last replacement votes."""
        world = self._world
        if world.lost_voter is None:
            machine = world.lost_voter = self._rng.choice(world.voters)
            self._count(machine, "disk wiped")
            machine.wipe()
            self._later(machine.start)

    def _damage(self) -> None:
        """Kill one broker, always the same, while all it has is elsewhere, and let a bit of its records flip."""
        world = self._world
        machine = world.brokers[0]
        if world.is_spare(machine):
            machine.kill()
            world.counts["bit flip"] += machine.damage()
            self._later(machine.start)

    def _fail_directory(self) -> None:
        """Let the second disk of a broker fail; whoever looks after it mends it later, and starts the broker again."""
        machine = self._rng.choice(self._world.brokers)
        if machine.fail_second():
            self._count(machine, "log directory failed")
            self._later(lambda: self._mend_directory(machine))

    def _mend_directory(self, machine: BrokerMachine) -> None:
        """It has what was on the device; or it is replaced by an empty one, if two others have everything."""
        world = self._world
        is_replaced = world.options.min_isr == 2 and self._rng.random() < 0.5 and world.is_spare(machine)
        if machine.mend_second(None if is_replaced else self._rng.choice(LOSSES)):
            self._count(machine, "log directory replaced" if is_replaced else "log directory mended")
            self._later(machine.start)

    def _fill(self) -> None:
        """Leave little room on a disk of a broker: clients' appends are refused; or next to none: nothing grows but the metadata."""
        machine = self._rng.choice(self._world.brokers)
        room_bytes = self._rng.choice((TIGHT_BYTES, FULL_BYTES))
        if machine.fill(room_bytes):
            self._count(machine, "disk full")
            if room_bytes == FULL_BYTES:
                # The real database of the image asks for more than that.
                self._world.databases.fill(machine.name)
            self._later(machine.make_room)

    def _black_out(self) -> None:
        """All brokers, or everything."""
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
        """Cut some machines off from some others, one way or both, until a while has passed."""
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
        """Cut one broker off from the other brokers alone, for longer than followers may lag: it reaches voters and clients."""
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
        """Let connections that there are swallow everything, one way or both: any one, or all of a server. New ones are carried."""
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
            world.counts["half-open connection of gRPC" if connection.serve else "half-open link"] += 1
        world.counts["half-open strike"] += bool(there)

    def _count(self, machine: Machine, what: str) -> None:
        self._world.counts[f"{what} of a {machine.name.partition('-')[0]}"] += 1
