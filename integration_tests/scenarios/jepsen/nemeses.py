# SPDX-License-Identifier: Apache-2.0
"""What hurts and heals a cluster under load: kills, pauses, cuts, dead connections, a full disk, wrong clocks, membership changes.

Each nemesis owns one kind of fault, chosen at random by seed. At most one of them hurts a server at a time. None judges.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from lograft import Admin, TopicPartition
from lograft.errors import LograftError
from lograft.types import ElectionType

from integration_tests.harness.cluster import broker_name
from integration_tests.harness.faults.disks import empty_disk, fill_disk
from integration_tests.harness.faults.forgetful_proxy import ForgetfulProxy, Way
from integration_tests.harness.faults.namespaces import Namespaces
from integration_tests.harness.faults.skewed_clock import skew_path
from integration_tests.harness.process import Process
from integration_tests.harness.scene import TOPIC, Scene

SKEW_MS_MAX = 3_600_000
"""One hour in either direction."""


class Nemesis(Protocol):
    """One kind of fault."""

    name: str

    def hurt(self, world: World) -> str:
        """Do harm and return what it was; an empty text means that no harm was possible now."""
        ...

    def heal(self, world: World) -> str:
        """Undo the harm and return what was done."""
        ...


@dataclass(slots=True, kw_only=True)
class World:
    """What nemeses share: the scene, an admin client with short limits, randomness, and which servers are hurt."""

    scene: Scene
    admin: Admin
    rng: random.Random
    taken: set[str] = field(default_factory=set[str])
    active: set[str] = field(default_factory=set[str])

    def processes(self) -> dict[str, Process]:
        """Return all servers by name."""
        return self.scene.cluster.processes

    def take(self, names: Sequence[str]) -> None:
        """Take servers, so that no other nemesis hurts them."""
        self.taken |= set(names)
        self._tell_scene()

    def give_back(self, names: Sequence[str]) -> None:
        """Give servers back."""
        self.taken -= set(names)
        self._tell_scene()

    def _tell_scene(self) -> None:
        brokers = self.scene.cluster.brokers
        self.scene.hurt = {broker_id for broker_id, process in brokers.items() if process.name in self.taken}

    def free(self, kind: str) -> list[str]:
        """Return the names of servers of a kind ("broker", "voter") that no nemesis has taken."""
        return [name for name in self.processes() if name.startswith(kind) and name not in self.taken]

    def choose(self) -> list[str]:
        """Return the servers to hurt: mostly one broker, otherwise one voter, a majority or all of a kind, or all servers."""
        kind = self.rng.choice(("broker", "broker", "broker", "voter"))
        free = self.free(kind)
        how = self.rng.choice(("one", "one", "one", "majority", "all", "leader", "leader"))
        if how == "leader" and kind == "broker":
            return self._leader(free)
        count = {"majority": len(free) // 2 + 1, "all": len(free)}.get(how, 1)
        return sorted(self.rng.sample(free, min(count, len(free))))

    def _leader(self, free: Sequence[str]) -> list[str]:
        """Return the leader of a random partition, if no nemesis has taken it."""
        state = self.scene.state()
        leader_id = None if not state else self.rng.choice(state).leader_id
        name = "" if leader_id is None else broker_name(leader_id)
        return [name] if name in free else []


class _Outage(ABC):
    """Takes servers away and brings them back."""

    name: str
    _undo: str

    def __init__(self) -> None:
        self._names: list[str] = []

    @abstractmethod
    def _take_away(self, process: Process) -> None: ...

    @abstractmethod
    def _bring_back(self, process: Process) -> None: ...

    def hurt(self, world: World) -> str:
        """Take some servers away."""
        self._names = world.choose()
        world.take(self._names)
        for name in self._names:
            self._take_away(world.processes()[name])
        return f"{self.name} {' '.join(self._names)}" if self._names else ""

    def heal(self, world: World) -> str:
        """Bring them back."""
        for name in self._names:
            self._bring_back(world.processes()[name])
        world.give_back(self._names)
        return f"{self._undo} {' '.join(self._names)}"


class Kill(_Outage):
    """kill -9. Healing starts the servers again."""

    name = "kill"
    _undo = "start"

    def _take_away(self, process: Process) -> None:
        process.kill()

    def _bring_back(self, process: Process) -> None:
        process.start()


class Pause(_Outage):
    """SIGSTOP. Healing is SIGCONT."""

    name = "pause"
    _undo = "resume"

    def _take_away(self, process: Process) -> None:
        process.pause()

    def _bring_back(self, process: Process) -> None:
        process.resume()


class Restart:
    """SIGTERM. Healing starts the server again."""

    name = "restart"

    def __init__(self) -> None:
        self._names: list[str] = []
        self.problems: list[str] = []

    def hurt(self, world: World) -> str:
        """Shut one server down cleanly."""
        free = world.free(world.rng.choice(("broker", "voter")))
        # While other servers are hurt, a clean shutdown may have to wait for them longer than its time limit.
        self._names = [] if world.active or not free else [world.rng.choice(free)]
        world.take(self._names)
        for name in self._names:
            try:
                status = world.processes()[name].stop()
            except TimeoutError as error:
                self.problems.append(str(error))
                continue
            if status != 0:
                self.problems.append(f"{name} ended with {status} when asked to stop")
        return f"stop {' '.join(self._names)}" if self._names else ""

    def heal(self, world: World) -> str:
        """Start it again."""
        for name in self._names:
            world.processes()[name].start()
        world.give_back(self._names)
        return f"start {' '.join(self._names)}"


class Partition:
    """Cuts between servers. Clients reach all servers. It takes no server: one behind a cut may be killed as well."""

    name = "partition"

    def __init__(self, network: Namespaces) -> None:
        self._network = network

    def hurt(self, world: World) -> str:
        """Cut off one server or half of them, from all or from one kind, both ways or one."""
        rng = world.rng
        names = list(world.processes())
        minority = rng.sample(names, rng.choice((1, 1, 1, len(names) // 2)))
        kind = rng.choice(("", "", "broker", "voter"))
        others = [name for name in names if name not in minority and name.startswith(kind)]
        if not others:
            return ""
        way = rng.choice(("both ways", "both ways", "what they send", "what they should receive"))
        if way != "what they should receive":
            self._network.cut(minority, others)
        if way != "what they send":
            self._network.cut(others, minority)
        return f"cut {' '.join(sorted(minority))} off from {' '.join(sorted(others))}, {way}"

    def heal(self, world: World) -> str:
        """Heal the network."""
        self._network.heal()
        return "heal the network"


class Forget(Protocol):
    """Makes the open connections of a server lose what is sent to it, from it, or both. New connections work."""

    def __call__(self, name: str, *, to: bool, from_: bool) -> int:
        """Forget the connections of the server with this name, and return their number."""
        ...


class HalfOpen:
    """Connections of one server die silently. It takes no server, and nothing can be healed: the ends must detect it.

    Args:
        forget: forgets the connections of a server.
        kinds: kinds of servers from which one is drawn.
    """

    name = "half-open"

    def __init__(self, forget: Forget, *, kinds: Sequence[str]) -> None:
        self._forget = forget
        self._kinds = kinds

    def hurt(self, world: World) -> str:
        """Forget the connections of one server, one way or both."""
        rng = world.rng
        kind = rng.choice(self._kinds)
        name = rng.choice([each for each in world.processes() if each.startswith(kind)])
        way = rng.choice(("both ways", "both ways", "what it sends", "what it should receive"))
        count = self._forget(name, to=way != "what it sends", from_=way != "what it should receive")
        return f"forget {count} connections of {name}, {way}" if count else ""

    def heal(self, world: World) -> str:
        """Do nothing."""
        del world
        return "leave dead connections to their ends"


def through_proxies(proxies: Mapping[str, ForgetfulProxy]) -> Forget:
    """Return a `Forget` that uses the proxy of each server. A proxy carries only connections to the advertised address."""

    def forget(name: str, *, to: bool, from_: bool) -> int:
        way = (Way.TO_SERVER if to else Way(0)) | (Way.TO_CLIENT if from_ else Way(0))
        return proxies[name].forget(way)

    return forget


class DiskFull:
    """Fills the small disk of one broker, to its limit or to the last byte. Healing removes the filler."""

    name = "disk-full"

    def __init__(self, path: Path, *, min_free_bytes: int) -> None:
        self._path = path
        self._min_free_bytes = min_free_bytes

    def hurt(self, world: World) -> str:
        """Write a file until there is too little free space, or none."""
        keep_bytes = world.rng.choice((0, 0, self._min_free_bytes // 2))
        fill_disk(self._path, keep_bytes=keep_bytes)
        return f"fill {self._path.name} but for {keep_bytes} bytes"

    def heal(self, world: World) -> str:
        """Remove the file."""
        empty_disk(self._path)
        return f"free {self._path.name}"


class ClockSkew:
    """Sets the wall clocks of some servers wrong (`skewed_clock`). Healing corrects them."""

    name = "clock"

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def hurt(self, world: World) -> str:
        """Shift some clocks by up to one hour."""
        names = world.rng.sample(list(world.processes()), world.rng.randint(1, 3))
        skews: dict[str, int] = {}
        for name in sorted(names):
            bound_ms = world.rng.choice((200, 10_000, SKEW_MS_MAX))
            skews[name] = world.rng.randint(-bound_ms, bound_ms)
            skew_path(self._directory, name).write_text(str(skews[name]))
        return f"shift clocks by {skews} ms"

    def heal(self, world: World) -> str:
        """Correct all clocks."""
        for path in self._directory.glob("*.skew"):
            path.unlink()
        return "set clocks right"


class Membership:
    """Removes a voter from the quorum. Healing adds it again."""

    name = "membership"

    def __init__(self) -> None:
        self._removed: int | None = None

    def hurt(self, world: World) -> str:
        """Remove a voter while no other server is hurt."""
        voters = world.scene.cluster.voters
        if len(voters) < 3 or len(world.free("voter")) < len(voters):
            return ""
        voter_id = world.rng.choice(sorted(voters))
        # With an unknown outcome the voter may have been removed. Healing finds out.
        self._removed = voter_id
        try:
            world.admin.remove_voter(voter_id)
        except LograftError as error:
            return f"remove voter {voter_id}: {error.code.name}"
        return f"remove voter {voter_id}"

    def heal(self, world: World) -> str:
        """Add the voter again. A failed attempt is repeated before the end of the run."""
        if self._removed is None:
            return "no voter to add"
        voter_id = self._removed
        try:
            if voter_id not in {each.node_id for each in world.admin.describe_quorum().voters}:
                world.admin.add_voter(voter_id)
        except LograftError as error:
            return f"add voter {voter_id}: {error.code.name}"
        self._removed = None
        return f"add voter {voter_id}"

    @property
    def is_whole(self) -> bool:
        """Return True if no voter is missing."""
        return self._removed is None


class Reassign:
    """Gives partitions other replicas, or the same in another order. Healing elects preferred leaders."""

    name = "reassign"

    def hurt(self, world: World) -> str:
        """Reassign some partitions."""
        scene, rng = world.scene, world.rng
        chosen = rng.sample(scene.partitions, max(1, len(scene.partitions) // 5))
        brokers = sorted(scene.cluster.brokers)
        changes = {TopicPartition(TOPIC, each): rng.sample(brokers, scene.shape.replicas) for each in chosen}
        try:
            results = world.admin.alter_partition_reassignments(changes)
        except LograftError as error:
            return f"reassign: {error.code.name}"
        refused = [each.error for each in results if each.error is not None]
        reason = f", {len(refused)} refused: {refused[0]}" if refused else ""
        return f"reassign {len(changes)} partitions{reason}"

    def heal(self, world: World) -> str:
        """Elect preferred leaders."""
        try:
            results = world.admin.elect_leaders([TOPIC], election=ElectionType.PREFERRED)
        except LograftError as error:
            return f"elect preferred leaders: {error.code.name}"
        return f"elect preferred leaders: {sum(each.error is None for each in results)} elected"
