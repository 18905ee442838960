# SPDX-License-Identifier: Apache-2.0
"""The network of the simulated world: connections between processes, delays, cuts, and what a broken connection does.

Owns who listens where, and when a message arrives. Must not know what is sent.

Laws (those of TCP)
    What is sent over one connection arrives in its order, or the connection breaks; both ends hear of the break once.
    A process that ends breaks its connections at once, for whoever can be reached. Behind a cut nothing arrives; what waited arrives
    when it is healed, and a connection that waited too long breaks.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

from integration_tests.simulation.virtual_loop import VirtualLoop
from metaquorum.testing.scheduler import Scheduler

BREAK_MS: Final = (3_000, 15_000)
"""A connection breaks after so many milliseconds, at random between the two, in which nothing gets through."""

CONNECT_TIMEOUT_MS: Final = 2_000
"""An attempt to connect through a cut fails after so long."""


class Process(Protocol):
    """One end."""

    name: str
    machine: str
    loop: VirtualLoop


class Listener(Protocol):
    """Who takes connections at an address."""

    process: Process

    def accept(self, connection: Connection) -> Callable[[], None]:
        """Take a connection; returns what to call when it breaks."""
        ...


class Connection:
    """One connection; made by `Network.connect`."""

    def __init__(self, network: Network, client: Process, server: Process) -> None:
        self._network = network
        self.client = client
        self.server = server
        self.is_broken = False
        self.on_break: dict[str, Callable[[], None]] = {}
        # What the server does with a call; set when it accepts.
        self.serve: Callable[[Any, Any], Any] | None = None
        # When the last message of each direction arrives; and those that wait behind a cut.
        self._last_ms: dict[str, int] = {}
        self._held: list[tuple[Process, Process, Callable[[], None]]] = []

    def send(self, sender: Process, receiver: Process, action: Callable[[], None]) -> None:
        """Run `action` at the receiver when the message has arrived there."""
        if self.is_broken or sender.loop.is_dead:
            return
        if self._held or self._network.is_cut(sender, receiver):
            if not self._held:
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
        """Send what waited behind a cut, as far as it gets through now."""
        held, self._held = self._held, []
        for sender, receiver, action in held:
            self.send(sender, receiver, action)

    def break_off(self) -> None:
        """Break: whoever of the two still runs and can be reached hears of it."""
        if self.is_broken:
            return
        self.is_broken = True
        self._held.clear()
        self._network.forget(self)
        for name, tell in sorted(self.on_break.items()):
            process = self.client if name == self.client.name else self.server
            process.loop.deliver(self._network.delay_ms(), tell)

    def is_stuck(self) -> bool:
        """True if something waits behind a cut."""
        return bool(self._held)


class Network:
    """See the module docstring.

    Args:
        scheduler: virtual time.
        rng: delays, and when connections break.
        delay_ms_max: longest delay of a message.
    """

    def __init__(self, scheduler: Scheduler, rng: random.Random, *, delay_ms_max: int) -> None:
        self.scheduler = scheduler
        self._rng = rng
        self._delay_ms_max = delay_ms_max
        self._listeners: dict[str, Listener] = {}
        self._connections: dict[Connection, None] = {}
        self._cuts: set[tuple[str, str]] = set()
        self.message_count = 0

    def delay_ms(self) -> int:
        """How long a message takes."""
        return self._rng.randint(0, self._delay_ms_max)

    def listen(self, address: str, listener: Listener) -> bool:
        """Take connections at an address; False if somebody else does."""
        if address in self._listeners:
            return False
        self._listeners[address] = listener
        return True

    def unlisten(self, address: str, listener: Listener) -> None:
        """Take none any more."""
        if self._listeners.get(address) is listener:
            del self._listeners[address]

    def is_listening(self, address: str) -> bool:
        """Whether a process takes connections there, which a paused one does too."""
        return address in self._listeners

    def connect(
        self, client: Process, address: str, on_done: Callable[[Connection | None], None], on_break: Callable[[], None]
    ) -> None:
        """Connect; `on_done` gets the connection when the other end has answered, or None."""
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
        connection = Connection(self, client, listener.process)
        self._connections[connection] = None
        connection.on_break[client.name] = on_break

        def accept() -> None:
            connection.on_break[listener.process.name] = listener.accept(connection)
            connection.send(listener.process, client, lambda: on_done(connection))

        connection.send(client, listener.process, accept)

    def end_process(self, process: Process) -> None:
        """A process is gone: its addresses are free, its connections break."""
        for address, listener in list(self._listeners.items()):
            if listener.process is process:
                del self._listeners[address]
        for connection in list(self._connections):
            if process in (connection.client, connection.server):
                self._lose(connection, process)

    def _lose(self, connection: Connection, process: Process) -> None:
        other = connection.server if connection.client is process else connection.client
        connection.on_break.pop(process.name, None)
        if self.is_cut(process, other):
            self.watch(connection)  # nobody tells the other end
        else:
            connection.break_off()

    def is_cut_off(self, machine: str, other: str) -> bool:
        """Whether two machines cannot speak with each other."""
        return (machine, other) in self._cuts or (other, machine) in self._cuts

    def is_cut(self, sender: Process, receiver: Process) -> bool:
        """Whether messages from one to the other get lost."""
        return (sender.machine, receiver.machine) in self._cuts

    def cut(self, sender: str, receiver: str) -> None:
        """Let nothing through from one machine to another."""
        self._cuts.add((sender, receiver))

    def heal(self) -> None:
        """Let everything through."""
        self._cuts.clear()
        for connection in list(self._connections):
            connection.release()

    def watch(self, connection: Connection) -> None:
        """Break a connection off if nothing gets through for too long."""

        def look() -> None:
            if connection.is_stuck() or connection.client.loop.is_dead or connection.server.loop.is_dead:
                connection.break_off()

        self.scheduler.after(self._rng.randint(*BREAK_MS), look)

    def forget(self, connection: Connection) -> None:
        """A connection is over."""
        self._connections.pop(connection, None)

    def connections(self) -> Iterator[Connection]:
        """All that are open."""
        return iter(self._connections)
