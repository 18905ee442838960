# SPDX-License-Identifier: Apache-2.0
"""The network of the simulated world: connections between processes, delays, cuts, and broken connections.

Owns the listeners, the time at which a message arrives, and the two ends of one direction of a stream. Does not know what is sent.

Laws (those of TCP)
    Messages of one connection arrive in order, or the connection breaks. Each end hears of the break once.
    A process that ends breaks its connections at once for every reachable peer. Nothing arrives behind a cut. What waited arrives when
    the cut is healed, and a connection that waited too long breaks.
    A connection that is forgotten in one direction (a NAT lost the entry, a machine is gone) loses everything in that direction, and
    TCP reports nothing: neither an end of the peer nor a break. Its ends find out by pings, or by what they miss.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol

from integration_tests.simulation.virtual_loop import VirtualLoop
from metaquorum.testing.scheduler import Scheduler

BREAK_MS: Final = (3_000, 15_000)
"""Shortest and longest milliseconds without progress after which a connection breaks, at random."""

CONNECT_TIMEOUT_MS: Final = 2_000
"""Milliseconds after which an attempt to connect through a cut fails."""

RECONNECT_MS: Final = (100, 500)
"""First and maximum pause in milliseconds after a failed attempt to connect."""

WINDOW_BYTES: Final = 256 * 1024
"""Bytes of a stream that may be on the way or unread before the writer waits."""

PIECE_WHOLE: Final = 0.9
"""Share of writes that arrive in one piece; for connections that carry bytes."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Liveness:
    """How an end of a connection detects that it is dead.

    Attributes:
        quiet_ms: milliseconds without a message after which it pings.
        timeout_ms: milliseconds without an answer to a ping after which the connection has failed.
    """

    quiet_ms: int
    timeout_ms: int


class Connection:
    """One connection, made by `Network.connect`."""

    def __init__(self, network: Network, client: Process, server: Process) -> None:
        self._network = network
        self.client = client
        self.server = server
        self.is_broken = False
        self.on_break: dict[str, Callable[[], None]] = {}
        # The server's handler of calls; set when the server accepts.
        self.serve: Callable[[Any, Any], Any] | None = None
        # Transports by process, if the connection carries bytes; set when they are created.
        self.ends: dict[str, Any] = {}
        # Called at the client when the server wants no new calls; set when it is connected.
        self.on_goaway: Callable[[], None] | None = None
        # Arrival time of the last message in each direction.
        self._last_ms: dict[str, int] = {}
        self._held: list[tuple[Process, Process, Callable[[], None]]] = []
        # How often the connection got stuck behind a cut.
        self.stuck_count = 0
        # True when both ends have it: the client has heard that the server accepted.
        self.is_established = False
        # Processes at which nothing arrives any more.
        self._deaf: set[str] = set()
        self._heard_s: dict[str, float] = {}
        # Ping behaviour of the ends that ping; set when they have the connection.
        self.liveness: dict[str, Liveness] = {}

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
                self._heard_s[receiver.name] = receiver.loop.time()
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
        is_news = not self._deaf
        self._deaf.update(receiver.name for receiver in receivers)
        self._held = [each for each in self._held if each[1].name not in self._deaf]
        for end in (self.client, self.server):
            if is_news and end.name in self.liveness and end.name in self.on_break:
                self._await_silence(end, self.liveness[end.name])

    def _await_silence(self, end: Process, liveness: Liveness) -> None:
        """Plan a ping for when nothing has come for long enough. Answered pings are not simulated, but their times are."""
        quiet_s = liveness.quiet_ms / 1000
        now_s = end.loop.time()
        silent_s = now_s - self._heard_s[end.name]
        end.loop.call_later(quiet_s - silent_s % quiet_s, self._ping, end, liveness)

    def _ping(self, end: Process, liveness: Liveness) -> None:
        if end.name not in self.on_break:
            return
        now_s = end.loop.time()
        # The small tolerance is for clocks that go wrong.
        left_s = self._heard_s[end.name] + liveness.quiet_ms / 1000 - now_s
        if left_s > 0.001:
            end.loop.call_later(left_s, self._ping, end, liveness)
            return
        # The other end may hear it as a sign of life. Its answer is lost, because at least one direction is forgotten.
        self.send(end, self.other(end), lambda: None)
        end.loop.call_later(liveness.timeout_ms / 1000, self._fail_ping, end)

    def _fail_ping(self, end: Process) -> None:
        tell = self.on_break.pop(end.name, None)
        if tell is None:
            return
        self._network.dead_count += 1
        tell()
        self.part(end)

    def part(self, process: Process) -> None:
        """Let the other end hear, behind earlier messages or never, that this end has let go."""
        self.on_break.pop(process.name, None)
        other = self.other(process)
        if not self.is_deaf(other):
            self.send(process, other, self.break_off)
        elif not self.on_break:
            self.break_off()


class Window:
    """Flow control of one direction of a stream, at its sender."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._left_bytes = WINDOW_BYTES
        self._waiter: asyncio.Future[None] | None = None
        self._is_closed = False

    @property
    def is_waited_for(self) -> bool:
        """True if a writer waits."""
        return self._waiter is not None and not self._waiter.done()

    async def take(self, size_bytes: int) -> bool:
        """Wait for room and use it; one message may exceed it. Return False if the stream ended before."""
        while self._left_bytes <= 0 and not self._is_closed:
            self._waiter = self._loop.create_future()
            await self._waiter
        self._left_bytes -= size_bytes
        return not self._is_closed

    def give(self, size_bytes: int) -> None:
        """Note that the other end has read this many bytes."""
        self._left_bytes += size_bytes
        self._wake()

    def close(self) -> None:
        """End the stream, so that no writer waits any more."""
        self._is_closed = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Inbox:
    """Unread messages of one direction of a stream."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._messages: deque[bytes] = deque()
        self._is_ended = False
        self._reader: asyncio.Future[None] | None = None

    @property
    def is_empty(self) -> bool:
        """True if everything that came was read."""
        return not self._messages

    def put(self, message: bytes) -> None:
        """Add a message."""
        if not self._is_ended:
            self._messages.append(message)
            self._wake()

    def end(self) -> None:
        """Note that no more messages will come."""
        self._is_ended = True
        self._wake()

    def drop(self) -> None:
        """Forget the unread messages and end."""
        self._messages.clear()
        self.end()

    async def get(self) -> bytes | None:
        """Return the next message, or None at the end."""
        while not self._messages and not self._is_ended:
            self._reader = self._loop.create_future()
            await self._reader
        return self._messages.popleft() if self._messages else None

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


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
        connection = Connection(self, client, listener.process)
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


class Dialer:
    """Connects a process to an address when asked. It tries again, with pauses, until it succeeds.

    Args:
        network: the network.
        process: the connecting process.
        address: target address.
        on_done: gets the connection, or None after each failed attempt.
        on_break: called when a connection broke.
    """

    def __init__(
        self,
        network: Network,
        process: Process,
        address: str,
        *,
        on_done: Callable[[Connection | None], None],
        on_break: Callable[[Connection], None],
    ) -> None:
        self._network = network
        self._process = process
        self._address = address
        self._on_done = on_done
        self._on_break = on_break
        self._failure_count = 0
        self._is_ended = False

    def dial(self) -> None:
        """Begin to connect. Call it only when the last connection is no longer usable."""
        made: list[Connection] = []

        def done(connection: Connection | None) -> None:
            if connection is None:
                self._fail()
            elif self._is_ended:
                connection.break_off()
            else:
                made.append(connection)
                self._failure_count = 0
                self._on_done(connection)

        def broke() -> None:
            if made:
                self._on_break(made[0])
            else:
                self._fail()

        self._network.connect(self._process, self._address, done, broke)

    def end(self) -> None:
        """Stop trying."""
        self._is_ended = True

    def _fail(self) -> None:
        if self._is_ended:
            return
        first_ms, last_ms = RECONNECT_MS
        pause_ms = min(first_ms << self._failure_count, last_ms)
        self._failure_count = min(self._failure_count + 1, 8)
        self._process.loop.call_later(pause_ms / 1000, self._redial)
        self._on_done(None)

    def _redial(self) -> None:
        if not self._is_ended:
            self.dial()
