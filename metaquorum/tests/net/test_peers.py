# SPDX-License-Identifier: Apache-2.0
"""Connections between servers by address, over real sockets: dialled once, shared, dialled again, refused."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import pytest

from metaquorum.net import peers
from metaquorum.net.connection import Limits, Loss
from metaquorum.net.hello import Identity, MisfitError, checked
from metaquorum.net.link import CallError, Outcome, ServedCall, Services, Stream, UnansweredError
from metaquorum.net.peers import NotSentError, Peers

ECHO, SILENT, NUMBERS = 1, 2, 3
WAIT_MS = 30_000


def identity(node_id: int, address: str | None, cluster_id: str = "c") -> Identity:
    """A server."""
    return Identity(cluster_id=cluster_id, node_id=node_id, incarnation_id=bytes([node_id]) * 16, address=address)


def free_address() -> str:
    """Return an address on which no process listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"127.0.0.1:{taken.getsockname()[1]}"


class Node:
    """A server whose answers have its node id, that counts connections, and that can be started again at its address."""

    def __init__(self, node_id: int, cluster_id: str = "c", address: str | None = None) -> None:
        self.address = address or free_address()
        self.identity = identity(node_id, self.address, cluster_id)
        self.accepted = 0
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Listen."""
        self.peers = Peers(self.identity, self._services(), limits=Limits(ping_after_ms=200, liveness_ms=WAIT_MS))
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._accept, "127.0.0.1", int(self.address.rpartition(":")[2]))

    async def stop(self) -> None:
        """Close everything."""
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await self.peers.close()

    @property
    def open_links(self) -> int:
        """Number of open connections."""
        return len(self.peers._all)  # pyright: ignore[reportPrivateUsage]

    @property
    def kept_count(self) -> int:
        """Addresses of which something is kept."""
        made: Any = self.peers
        return sum(map(len, (made._links, made._failed, made._waiting, made._dialling)))

    def _accept(self) -> asyncio.Protocol:
        self.accepted += 1
        return self.peers.accept()

    def _services(self) -> Services:
        def echo(call: ServedCall) -> None:
            call.respond(b"%d says " % self.identity.node_id + call.message)

        def numbers(stream: Stream) -> None:
            self._tasks.append(asyncio.create_task(send_numbers(stream)))

        return Services(requests={ECHO: echo, SILENT: lambda _: None}, streams={NUMBERS: (numbers, 1_000)})


async def send_numbers(stream: Stream) -> None:
    """Ten of them."""
    with suppress(CallError):
        for number in range(10):
            await stream.write(b"%d" % number)
    stream.end()


@asynccontextmanager
async def started(*nodes: Node) -> AsyncIterator[None]:
    """Servers that run."""
    async with AsyncExitStack() as stack:
        for node in nodes:
            await node.start()
            stack.push_async_callback(node.stop)
        yield


async def test_many_who_ask_at_once_share_one_connection_both_ways() -> None:
    """The connection also carries the calls of the server that was dialled."""
    one, two = Node(1), Node(2)
    async with started(one, two):
        asking = [one.peers.ask(two.address, ECHO, b"%d" % n, timeout_ms=WAIT_MS) for n in range(20)]
        assert await asyncio.gather(*asking) == [b"2 says %d" % n for n in range(20)]
        assert await two.peers.ask(one.address, ECHO, b"x", timeout_ms=WAIT_MS, node_id=1) == b"1 says x"
        assert (one.accepted, two.accepted) == (0, 1)
        outcomes: list[Outcome] = []
        one.peers.request(two.address, ECHO, b"y", timeout_ms=WAIT_MS, on_outcome=outcomes.append)
        stream = await one.peers.open(two.address, NUMBERS, b"", window_bytes=3, timeout_ms=WAIT_MS)
        assert [await stream.read() for _ in range(11)] == [*(b"%d" % n for n in range(10)), None]
        assert outcomes == [b"2 says y"]


async def test_server_that_comes_back_is_dialled_anew_and_what_was_under_way_is_lost() -> None:
    """A call that could not be sent says so, and the next attempt is soon."""
    one, two = Node(1), Node(2)
    async with started(one):
        await two.start()
        asking = asyncio.create_task(one.peers.ask(two.address, SILENT, b"", timeout_ms=WAIT_MS))
        assert await one.peers.ask(two.address, ECHO, b"", timeout_ms=WAIT_MS) == b"2 says "
        await two.stop()
        with pytest.raises(UnansweredError) as lost:
            await asking
        assert lost.value.loss is Loss.LOST
        with pytest.raises(NotSentError, match="cannot be reached"):
            await one.peers.ask(two.address, ECHO, b"", timeout_ms=WAIT_MS)
        with pytest.raises(NotSentError, match="cannot be reached"):
            await one.peers.ask(two.address, ECHO, b"", timeout_ms=WAIT_MS)
        again = Node(2, address=two.address)
        async with started(again):
            async with asyncio.timeout(WAIT_MS / 1000):
                answer = None
                while answer is None:
                    with suppress(NotSentError):
                        answer = await one.peers.ask(two.address, ECHO, b"", timeout_ms=WAIT_MS)
                    await asyncio.sleep(0.02)
            assert answer == b"2 says "


async def test_fault_of_whoever_asked_does_not_cost_the_others_their_outcomes() -> None:
    """Several requests wait for one connection, which cannot be made."""
    one, told = Node(1), list[Outcome]()

    def faulty(outcome: Outcome) -> None:
        told.append(outcome)
        raise RuntimeError("a fault of the asker")

    async with started(one), asyncio.timeout(WAIT_MS / 1000):
        address = free_address()
        for on_outcome in (faulty, told.append):
            one.peers.request(address, ECHO, b"", timeout_ms=WAIT_MS, on_outcome=on_outcome)
        while len(told) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert [type(outcome) for outcome in told] == [NotSentError] * 2


async def test_connections_that_others_dial_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """One more than allowed is ended, whether it greets or not; the others stay open, and a closed one makes room."""
    monkeypatch.setattr(peers, "MAX_ACCEPTED", 2)
    one, two, busy = Node(1), Node(2), Node(3)
    async with started(one, two, busy), asyncio.timeout(WAIT_MS / 1000):
        mute_reader, mute = await asyncio.open_connection("127.0.0.1", int(busy.address.rpartition(":")[2]))
        await mute_reader.readexactly(14)
        assert await one.peers.ask(busy.address, ECHO, b"", timeout_ms=WAIT_MS) == b"3 says "
        with pytest.raises((NotSentError, UnansweredError)):
            await two.peers.ask(busy.address, SILENT, b"", timeout_ms=WAIT_MS)
        assert await one.peers.ask(busy.address, ECHO, b"", timeout_ms=WAIT_MS) == b"3 says "
        mute.close()
        answer = None
        while answer is None:
            with suppress(CallError):
                answer = await two.peers.ask(busy.address, ECHO, b"", timeout_ms=WAIT_MS)
            await asyncio.sleep(0.02)
        assert answer == b"3 says "


async def test_those_who_wait_for_a_connection_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """One more fails at once as not sent; the others wait on."""
    monkeypatch.setattr(peers, "MAX_WAITING", 2)
    one, told = Node(1), list[Outcome]()
    async with started(one), asyncio.timeout(WAIT_MS / 1000):
        with socket.create_server(("127.0.0.1", 0)) as silent:
            address = f"127.0.0.1:{silent.getsockname()[1]}"
            for _ in range(2):
                one.peers.request(address, ECHO, b"", timeout_ms=WAIT_MS, on_outcome=told.append)
            with pytest.raises(NotSentError, match="too many wait"):
                await one.peers.ask(address, ECHO, b"", timeout_ms=WAIT_MS)
            assert told == []
            while len(told) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    assert [type(outcome) for outcome in told] == [NotSentError] * 2


async def test_nothing_is_kept_of_addresses_that_nobody_asks_for_any_more() -> None:
    """A server that keeps asking at new addresses without success does not grow: refused, not answered in time, or while it stops."""
    one = Node(1)
    async with started(one), asyncio.timeout(WAIT_MS / 1000):
        for _ in range(20):
            with pytest.raises(NotSentError):
                await one.peers.ask(free_address(), ECHO, b"", timeout_ms=WAIT_MS)
        with socket.create_server(("127.0.0.1", 0)) as silent:
            address = f"127.0.0.1:{silent.getsockname()[1]}"
            with pytest.raises(NotSentError, match="no connection in time"):
                await one.peers.ask(address, ECHO, b"", timeout_ms=1)
        while one.kept_count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await one.peers.close()
        with pytest.raises(NotSentError, match="stops"):
            await one.peers.ask(free_address(), ECHO, b"", timeout_ms=WAIT_MS)
        assert one.kept_count == 0


async def test_name_is_looked_up_for_each_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that returns at another address, as a pod does, is found there at once; the old address is not cached."""
    asked: list[str] = []
    look_up = socket.getaddrinfo

    def look_up_here(host: str, *arguments: Any, **options: Any) -> Any:
        # No name server of a test can be reached by the system's resolver.
        if host != "peer.test":
            return look_up(host, *arguments, **options)
        asked.append(host)
        return look_up("127.0.0.2" if len(asked) == 1 else "127.0.0.1", *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", look_up_here)
    one, two = Node(1), Node(2)
    async with started(one, two), asyncio.timeout(WAIT_MS / 1000):
        address = f"peer.test:{two.address.rpartition(':')[2]}"
        answer = None
        while answer is None:
            with suppress(NotSentError):
                answer = await one.peers.ask(address, ECHO, b"", timeout_ms=WAIT_MS)
            await asyncio.sleep(0.02)
    assert answer == b"2 says "
    assert len(asked) == 2


@pytest.mark.parametrize(("cluster_id", "node_id"), [("other", 2), ("c", 3)])
async def test_server_of_another_cluster_or_another_node_is_not_asked(cluster_id: str, node_id: int) -> None:
    """A stale address may be that of any server."""
    one, two = Node(1), Node(2, cluster_id)
    async with started(one, two):
        with pytest.raises(NotSentError):
            await one.peers.ask(two.address, ECHO, b"", timeout_ms=WAIT_MS, node_id=node_id)


@pytest.mark.parametrize("is_wrong_first", [True, False])
async def test_who_must_answer_is_the_business_of_whoever_asks(*, is_wrong_first: bool) -> None:
    """Several calls wait for one connection and want different nodes: each has its own outcome, also on an open connection."""
    one, two = Node(1), Node(2)
    async with started(one, two):
        for _ in range(2):
            told: list[Outcome] = []
            order = (3, 2, None) if is_wrong_first else (None, 2, 3)
            asking = [one.peers.ask(two.address, ECHO, b"", timeout_ms=WAIT_MS, node_id=wanted) for wanted in order]
            told = await asyncio.gather(*asking, return_exceptions=True)
            wrong = told.pop(0 if is_wrong_first else 2)
            assert told == [b"2 says "] * 2
            assert isinstance(wrong, NotSentError)
            assert wrong.misfit is not None
            assert "node 2 answers" in str(wrong)
        assert two.accepted == 1


async def test_dialling_has_a_time_limit_of_the_caller_and_of_its_own() -> None:
    """The port accepts connections and says nothing."""
    one = Node(1)
    async with started(one):
        with socket.create_server(("127.0.0.1", 0)) as silent:
            address = f"127.0.0.1:{silent.getsockname()[1]}"
            with pytest.raises(NotSentError, match="no connection in time"):
                await one.peers.ask(address, ECHO, b"", timeout_ms=50)
            with pytest.raises(NotSentError, match="cannot be reached"):
                await one.peers.ask(address, ECHO, b"", timeout_ms=WAIT_MS)
        for nowhere in ("127.0.0.1", "127.0.0.1:x", "no.such.host.invalid:1", "127.0.0.1:99999", "a\0b:1"):
            with pytest.raises(NotSentError, match="cannot be reached"):
                await one.peers.ask(nowhere, ECHO, b"", timeout_ms=WAIT_MS)


async def test_two_that_dial_at_once_both_get_answers() -> None:
    """There may be two connections for a while; neither closes during a call."""
    one, two = Node(1), Node(2)
    async with started(one, two):
        for _ in range(3):
            answers = await asyncio.gather(
                *(one.peers.ask(two.address, ECHO, b"a", timeout_ms=WAIT_MS) for _ in range(5)),
                *(two.peers.ask(one.address, ECHO, b"b", timeout_ms=WAIT_MS) for _ in range(5)),
            )
            assert answers == [b"2 says a"] * 5 + [b"1 says b"] * 5
        assert one.accepted + two.accepted <= 2


async def test_second_connection_of_two_that_dialled_at_once_goes_and_no_call_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each side uses the connection that it dialled: the sweep must not close one during a call, nor close both."""
    monkeypatch.setattr(peers, "SPARE_SWEEP_MS", 50)
    one, two = Node(1), Node(2)
    stop = asyncio.Event()
    counts = [0, 0]

    async def asks(index: int, who: Node, whom: Node) -> None:
        expected = b"%d says x" % whom.identity.node_id
        while not stop.is_set():
            assert await who.peers.ask(whom.address, ECHO, b"x", timeout_ms=WAIT_MS) == expected
            counts[index] += 1

    async with started(one, two), asyncio.timeout(WAIT_MS / 1000):
        asking = [asyncio.create_task(asks(0, one, two)), asyncio.create_task(asks(1, two, one))]
        while not any(task.done() for task in asking) and (one.open_links, two.open_links) != (1, 1):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        # Leave time for one more sweep.
        await asyncio.sleep(0.2)
        stop.set()
        await asyncio.gather(*asking)
        assert (one.accepted, two.accepted) == (1, 1)
        assert (one.open_links, two.open_links) == (1, 1)
        assert min(counts) > 0


async def test_server_asks_itself_over_a_connection_that_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker and the controller in one process do this; both ends of the connection stay open."""
    monkeypatch.setattr(peers, "SPARE_SWEEP_MS", 20)
    one = Node(1)
    async with started(one), asyncio.timeout(WAIT_MS / 1000):
        for _ in range(10):
            assert await one.peers.ask(one.address, ECHO, b"x", timeout_ms=WAIT_MS) == b"1 says x"
            await asyncio.sleep(0.02)
        assert one.accepted == 1


async def test_stop_tells_whoever_waits() -> None:
    """Calls that wait for a connection, and calls after the stop."""
    one = Node(1)
    await one.start()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        asking = asyncio.create_task(one.peers.ask(address, ECHO, b"", timeout_ms=WAIT_MS))
        await asyncio.sleep(0.05)
        await one.stop()
        for each in (asking, one.peers.ask(address, ECHO, b"", timeout_ms=WAIT_MS)):
            with pytest.raises(NotSentError, match="stops"):
                await each


@pytest.mark.parametrize(
    "body",
    [
        b"\xff",
        identity(1, None, "other").encode(),
        Identity(cluster_id="c", node_id=1, incarnation_id=b"", address=None).encode(),
    ],
)
def test_hello_that_does_not_fit_is_refused_with_a_reason(body: bytes) -> None:
    """Nonsense, another cluster, no process."""
    with pytest.raises(MisfitError) as misfit:
        checked(body, identity(2, None))
    assert misfit.value.goodbye()


def test_hello_goes_through_bytes() -> None:
    """Decoding returns the encoded identity."""
    other = identity(1, "h:1")
    assert checked(other.encode(), identity(2, None)) == other
