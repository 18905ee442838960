# SPDX-License-Identifier: Apache-2.0
"""The network of the simulated world: connections between processes, delays, cuts, and broken connections.

Owns the listeners, the time at which a message arrives, and the end of a connection. Does not know what is sent.

Laws (those of TCP)
    Messages of one connection arrive in order, or the connection breaks. Each end hears of the break once.
    A process that ends breaks its connections at once for every reachable peer. Nothing arrives behind a cut. What waited arrives when
    the cut is healed, and a connection that waited too long breaks.
    A connection that is forgotten in one direction (a NAT lost the entry, a machine is gone) loses everything in that direction, and
    TCP reports nothing: neither an end of the peer nor a break. Its ends find out by pings, or by what they miss.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator
from typing import Any, Final, Protocol

from integration_tests.simulation.virtual_loop import VirtualLoop
from metaquorum.testing.scheduler import Scheduler

BREAK_MS: Final = (3_000, 15_000)
"""Shortest and longest milliseconds without progress after which a connection breaks, at random."""

CONNECT_TIMEOUT_MS: Final = 2_000
"""Milliseconds after which an attempt to connect through a cut fails."""

WINDOW_BYTES: Final = 256 * 1024
"""Bytes of a connection that may be on the way or unread before the writer waits."""

PIECE_WHOLE: Final = 0.9
"""Share of writes that arrive in one piece."""


class Process(Protocol):
    """One end of a connection."""

    name: str
    machine: str
    loop: VirtualLoop


class Listener(Protocol):
    """Accepts connections at an address."""

    process: Process

    def accept(self, connection: Connection) -> Callable[[], None]:
        """Accept a connection. Return the function to call when it breaks."""
        ...


class Connection:
    """One connection, made by `Network.connect`. Its `number` stands for the port of its client."""

    def __init__(self, network: Network, client: Process, server: Process, number: int) -> None:
        self._network = network
        self.number = number
        self.client = client
        self.server = server
        self.is_broken = False
        self.on_break: dict[str, Callable[[], None]] = {}
        # Transports by process; set when they are created.
        self.ends: dict[str, Any] = {}
        # Arrival time of the last message in each direction.
        self._last_ms: dict[str, int] = {}
        self._held: list[tuple[Process, Process, Callable[[], None]]] = []
        # How often the connection got stuck behind a cut.
        self.stuck_count = 0
        # True when both ends have it: the client has heard that the server accepted.
        self.is_established = False
        # Processes at which nothing arrives any more.
        self._deaf: set[str] = set()

    def send(self, sender: Process, receiver: Process, action: Callable[[], None]) -> None:
        """Run `action` at the receiver when the message arrives there."""
        if self.is_broken or sender.loop.is_dead or receiver.name in self._deaf:
            return
        if self._held or self._network.is_cut(sender, receiver):
            if not self._held:
                self.stuck_count += 1
                self._network.watch(self)
            self._held.append((sender, receiver, action))
            return
        network = self._network
        at_ms = max(network.scheduler.now_ms + network.delay_ms(), self._last_ms.get(receiver.name, 0))
        self._last_ms[receiver.name] = at_ms

        def arrive() -> None:
            if not self.is_broken:
                network.message_count += 1
                network.scheduler.trace(f"{network.scheduler.now_ms} {sender.name} > {receiver.name}")
                action()

        receiver.loop.deliver(at_ms - network.scheduler.now_ms, arrive)

    def release(self) -> None:
        """Send the messages that waited behind a cut, as far as they get through now."""
        held, self._held = self._held, []
        for sender, receiver, action in held:
            self.send(sender, receiver, action)

    def break_off(self) -> None:
        """Break the connection. Each end that still runs and is reachable hears of it."""
        if self.is_broken:
            return
        self.is_broken = True
        self._held.clear()
        self._network.forget(self)
        for name, tell in sorted(self.on_break.items()):
            process = self.client if name == self.client.name else self.server
            process.loop.deliver(self._network.delay_ms(), tell)

    def is_stuck(self) -> bool:
        """True if a message waits behind a cut."""
        return bool(self._held)

    # Forgotten connections.

    @property
    def is_forgotten(self) -> bool:
        """True once nothing arrives any more at one of the ends, or at both."""
        return bool(self._deaf)

    def is_deaf(self, process: Process) -> bool:
        """Return True if nothing arrives any more at an end."""
        return process.name in self._deaf

    def other(self, process: Process) -> Process:
        """Return the other end."""
        return self.server if process is self.client else self.client

    def forget(self, *receivers: Process) -> None:
        """Lose everything sent to these ends from now on, silently. Messages on the way still arrive."""
        self._deaf.update(receiver.name for receiver in receivers)
        self._held = [each for each in self._held if each[1].name not in self._deaf]

    def part(self, process: Process) -> None:
        """Let the other end hear, behind earlier messages or never, that this end has let go."""
        self.on_break.pop(process.name, None)
        other = self.other(process)
        if not self.is_deaf(other):
            self.send(process, other, self.break_off)
        elif not self.on_break:
            self.break_off()


class Network:
    """All connections between the machines of a world.

    Args:
        scheduler: virtual time.
        rng: source of chance for delays and breaks.
        delay_ms_max: longest delay of a message, in milliseconds.

    Attributes:
        change_answer: gets each answer to a call and the name of the receiving machine, and returns what is sent. None: answers are
            not changed.
        message_count: messages that arrived.
        dead_count: ends of forgotten connections that a ping revealed as dead.
    """

    def __init__(self, scheduler: Scheduler, rng: random.Random, *, delay_ms_max: int) -> None:
        self.change_answer: Callable[[Any, str], Any] | None = None
        self.scheduler = scheduler
        self._rng = rng
        self._delay_ms_max = delay_ms_max
        self._listeners: dict[str, Listener] = {}
        self._connections: dict[Connection, None] = {}
        self._cuts: set[tuple[str, str]] = set()
        self.message_count = 0
        self.dead_count = 0
        self._connection_count = 0

    def delay_ms(self) -> int:
        """Return a random delay of a message in milliseconds."""
        return self._rng.randint(0, self._delay_ms_max)

    def piece_bytes(self, size_bytes: int) -> int:
        """Return how many bytes of a write travel in one piece: usually all, sometimes a part."""
        return size_bytes if size_bytes <= 1 or self._rng.random() < PIECE_WHOLE else self._rng.randint(1, size_bytes)

    def listen(self, address: str, listener: Listener) -> bool:
        """Listen at an address. Return False if another listener does."""
        if address in self._listeners:
            return False
        self._listeners[address] = listener
        return True

    def unlisten(self, address: str, listener: Listener) -> None:
        """Stop listening at an address."""
        if self._listeners.get(address) is listener:
            del self._listeners[address]

    def is_listening(self, address: str) -> bool:
        """Return True if a process listens there, paused or not."""
        return address in self._listeners

    def connect(
        self, client: Process, address: str, on_done: Callable[[Connection | None], None], on_break: Callable[[], None]
    ) -> None:
        """Connect. `on_done` gets the connection when the other end has answered, or None."""
        listener = self._listeners.get(address)
        machine = address.partition(":")[0]

        def refuse(delay_ms: int) -> None:
            client.loop.deliver(delay_ms, lambda: on_done(None))

        if self.is_cut_off(client.machine, machine):
            refuse(CONNECT_TIMEOUT_MS)
            return
        if listener is None:
            refuse(self.delay_ms())
            return
        self._connection_count += 1
        connection = Connection(self, client, listener.process, self._connection_count)
        self._connections[connection] = None
        connection.on_break[client.name] = on_break

        def done() -> None:
            connection.is_established = True
            on_done(connection)

        def accept() -> None:
            connection.on_break[listener.process.name] = listener.accept(connection)
            connection.send(listener.process, client, done)

        connection.send(client, listener.process, accept)

    def end_process(self, process: Process) -> None:
        """Free the addresses of a process that has ended, and break its connections."""
        for address, listener in list(self._listeners.items()):
            if listener.process is process:
                del self._listeners[address]
        for connection in list(self._connections):
            if process in (connection.client, connection.server):
                self._lose(connection, process)

    def _lose(self, connection: Connection, process: Process) -> None:
        other = connection.other(process)
        connection.on_break.pop(process.name, None)
        if connection.is_deaf(other):
            connection.part(process)
        elif self.is_cut(process, other):
            self.watch(connection)  # the other end is not told
        else:
            connection.break_off()

    def is_cut_off(self, machine: str, other: str) -> bool:
        """Return True if two machines cannot talk to each other."""
        return (machine, other) in self._cuts or (other, machine) in self._cuts

    @property
    def is_whole(self) -> bool:
        """True if there is no cut."""
        return not self._cuts

    def is_cut(self, sender: Process, receiver: Process) -> bool:
        """Return True if messages from one to the other get lost."""
        return (sender.machine, receiver.machine) in self._cuts

    def cut(self, sender: str, receiver: str) -> None:
        """Let nothing through from one machine to another."""
        self._cuts.add((sender, receiver))

    def heal(self, lasting: Collection[tuple[str, str]] = ()) -> None:
        """Heal all cuts except those in `lasting`."""
        self._cuts.intersection_update(lasting)
        for connection in list(self._connections):
            connection.release()

    def clear(self) -> None:
        """Forget every connection and listener at the end of the world."""
        self._listeners.clear()
        self._connections.clear()

    def watch(self, connection: Connection) -> None:
        """Break a connection off if nothing gets through for too long."""
        stuck_count = connection.stuck_count

        def look() -> None:
            if connection.is_forgotten:
                return
            is_stuck_still = connection.is_stuck() and connection.stuck_count == stuck_count
            if is_stuck_still or connection.client.loop.is_dead or connection.server.loop.is_dead:
                connection.break_off()

        self.scheduler.after(self._rng.randint(*BREAK_MS), look)

    def forget(self, connection: Connection) -> None:
        """Forget a connection that is over."""
        self._connections.pop(connection, None)

    def connections(self) -> Iterator[Connection]:
        """Return an iterator over all open connections."""
        return iter(self._connections)
