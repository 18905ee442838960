# SPDX-License-Identifier: Apache-2.0
"""The connections of one process from start to end: the port, when it answers, and what each side sees at the close."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from lograft.internal.v1 import quorum_pb2 as pb

from metaquorum.net.carrier import Carrier, listening_socket
from metaquorum.net.connection import Loss
from metaquorum.net.hello import Identity, checked
from metaquorum.net.link import Link, ServedCall, Stream, UnansweredError
from metaquorum.net.peers import NotSentError
from metaquorum.tests.quorum_cluster import until

WAIT_S, WAIT_MS, LONG_MS = 30.0, 30_000, 600_000
ECHO, SLOW, COUNT = 100, 101, 102


def carrier(node_id: int, cluster_id: str = "c") -> Carrier:
    """A carrier that answers with its node id, slowly, or by a stream."""
    made = Carrier(cluster_id=cluster_id, node_id=node_id)

    def echo(request: pb.ProbeRequest, call: ServedCall) -> None:
        call.respond(pb.ProbeResponse(node_id=node_id, cluster_id=request.cluster_id).SerializeToString())

    async def slow(_request: pb.ProbeRequest, _call: ServedCall) -> pb.ProbeResponse:
        await asyncio.Event().wait()
        return pb.ProbeResponse()

    async def count(_request: pb.ProbeRequest, stream: Stream) -> None:
        await stream.write(b"0")
        await asyncio.Event().wait()

    made.table.add(ECHO, pb.ProbeRequest, echo)
    made.table.add_waiting(SLOW, pb.ProbeRequest, slow)
    made.table.add_stream(COUNT, pb.ProbeRequest, count, window_bytes=100)
    return made


@asynccontextmanager
async def running(*carriers: Carrier) -> AsyncIterator[list[str]]:
    """Carriers with a port each; their addresses."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(asyncio.timeout(WAIT_S))
        addresses: list[str] = []
        for each in carriers:
            stack.push_async_callback(each.close)
            addresses.append(f"127.0.0.1:{each.bind('127.0.0.1', 0)}")
            await each.start(addresses[-1])
        yield addresses


async def ask(who: Carrier, address: str) -> int:
    """Ask an address for the id of the node there."""
    return pb.ProbeResponse.FromString(await who.peers.ask(address, ECHO, b"", timeout_ms=WAIT_MS)).node_id


async def test_one_that_is_not_dialled_asks_and_is_asked_back() -> None:
    """It binds no port; a server that it dials does not know its address, and asks it over the same connection."""
    dialler = carrier(2)
    await dialler.start(None)
    try:
        async with running(carrier(1)) as (address,):
            assert await ask(dialler, address) == 1
            link = await dialler.peers.connected(address, timeout_ms=WAIT_MS)
            own = Identity(cluster_id="c", node_id=2, incarnation_id=bytes(16), address=None)
            who = checked(link.hello, own)
            assert (who.node_id, who.address) == (1, address)
    finally:
        await dialler.close()


async def test_each_process_has_an_incarnation_of_its_own() -> None:
    """A node that restarts has another one."""
    dialler = carrier(2)
    await dialler.start(None)
    hellos: list[bytes] = []
    try:
        for _ in range(2):
            async with running(carrier(1)) as (address,):
                hellos.append((await dialler.peers.connected(address, timeout_ms=WAIT_MS)).hello)
    finally:
        await dialler.close()
    own = Identity(cluster_id="c", node_id=2, incarnation_id=bytes(16), address=None)
    first, second = (checked(hello, own) for hello in hellos)
    assert first.node_id == second.node_id
    assert first.incarnation_id != second.incarnation_id


async def test_bound_port_answers_from_the_start_on() -> None:
    """A node that dials early waits and is not refused, so an election does not assume that the process is gone."""
    late, dialler = carrier(1), carrier(2)
    await dialler.start(None)
    address = f"127.0.0.1:{late.bind('127.0.0.1', 0)}"
    try:
        async with asyncio.timeout(WAIT_S):
            asking = asyncio.create_task(ask(dialler, address))
            await asyncio.sleep(0.1)
            assert not asking.done()
            await late.start(address)
            assert await asking == 1
    finally:
        await dialler.close()
        await late.close()


async def test_port_of_another_process_is_refused_at_the_bind() -> None:
    """Otherwise each of them would get half of the connections."""
    first, second = carrier(1), carrier(2)
    port = first.bind("127.0.0.1", 0)
    assert port > 0
    try:
        with pytest.raises(OSError, match="in use"):
            second.bind("127.0.0.1", port)
        with pytest.raises(socket.gaierror):
            second.bind("no.such.host.invalid", 0)
    finally:
        await first.close()
        await second.close()
    # A carrier that never started frees its port as well.
    listening_socket("127.0.0.1", port).close()


async def test_name_of_several_addresses_is_one_port() -> None:
    """The system chooses one port number for all addresses of the name."""
    named, dialler = carrier(1), carrier(2)
    port = named.bind("localhost", 0)
    await named.start(f"localhost:{port}")
    await dialler.start(None)
    try:
        assert await ask(dialler, f"localhost:{port}") == 1
    finally:
        await dialler.close()
        await named.close()


def has_ipv6() -> bool:
    """Whether this machine has a loopback address of IPv6."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="no IPv6 here")
@pytest.mark.parametrize(("host", "addresses"), [("::", ["127.0.0.1", "[::1]"]), ("::1", ["[::1]"])])
async def test_port_of_both_families_is_reached_by_both(host: str, addresses: list[str]) -> None:
    """An IPv6 address is written in brackets."""
    both, dialler = carrier(1), carrier(2)
    port = both.bind(host, 0)
    await both.start(f"[::1]:{port}")
    await dialler.start(None)
    try:
        for address in addresses:
            assert await ask(dialler, f"{address}:{port}") == 1
    finally:
        await dialler.close()
        await both.close()


async def test_close_tells_everybody_on_both_sides_and_frees_the_port() -> None:
    """Open calls and streams end on both sides, and the next call finds no server. A second close changes nothing."""
    async with running(carrier(1), carrier(2)) as (one, two), AsyncExitStack() as stack:
        first, second = carrier(3), carrier(4)
        for each in (first, second):
            await each.start(None)
            stack.push_async_callback(each.close)
        asking = asyncio.create_task(first.peers.ask(one, SLOW, b"", timeout_ms=LONG_MS))
        stream = await first.peers.open(one, COUNT, b"", window_bytes=100, timeout_ms=WAIT_MS)
        assert await stream.read() == b"0"
        elsewhere = asyncio.create_task(first.peers.ask(two, SLOW, b"", timeout_ms=LONG_MS))
        links = [await first.peers.connected(address, timeout_ms=WAIT_MS) for address in (one, two)]
        await until(lambda: [link.open_count for link in links] == [2, 1], what="the calls")
        await first.close()
        await first.close()
        for each in (asking, elsewhere):
            with pytest.raises(UnansweredError) as lost:
                await each
            assert lost.value.loss is Loss.LOST
        with pytest.raises(UnansweredError):
            await stream.read()
        with pytest.raises(NotSentError, match="stops"):
            await ask(first, one)
        assert await ask(second, one) == 1


async def test_server_that_closes_ends_its_calls_and_refuses_from_then_on() -> None:
    """Open calls end at once, and the next dial is refused as by a process that is gone."""
    dialler = carrier(2)
    await dialler.start(None)
    try:
        async with running(carrier(1)) as (address,):
            asking = asyncio.create_task(dialler.peers.ask(address, SLOW, b"", timeout_ms=LONG_MS))
            stream = await dialler.peers.open(address, COUNT, b"", window_bytes=100, timeout_ms=WAIT_MS)
            assert await stream.read() == b"0"
        with pytest.raises(UnansweredError) as lost:
            await asking
        assert lost.value.loss is Loss.LOST
        with pytest.raises(UnansweredError):
            await stream.read()
        with pytest.raises(NotSentError) as refused:
            await ask(dialler, address)
        assert refused.value.is_refused
    finally:
        await dialler.close()


async def test_connection_that_is_made_while_the_server_closes_is_ended() -> None:
    """The port accepted it before the close and it arrives after: without this, the close would wait for it for ever."""
    async with running(carrier(1)):
        closing = carrier(2)
        await closing.start(None)
        link = closing.peers.accept()
        assert isinstance(link, Link)
        ended = asyncio.create_task(closing.close())
        await asyncio.sleep(0)
        own, other = socket.socketpair()
        with other:
            own.setblocking(False)
            other.setblocking(False)
            await asyncio.get_running_loop().connect_accepted_socket(lambda: link, own)
            async with asyncio.timeout(WAIT_S):
                await ended
                while await asyncio.get_running_loop().sock_recv(other, 1_000):
                    pass
