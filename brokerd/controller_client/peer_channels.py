# SPDX-License-Identifier: Apache-2.0
"""gRPC channels to other servers of the cluster: opened at first use, shared, bounded in number; and how servers are named.

Owns the channels, and the one way to write the address of a server. Must not know what is called over them.
Everything runs on the event loop thread.

A connection that swallows everything (its machine was lost, a NAT forgot it) is given up by whoever got no answer over it: the next
call goes over a new one. Where nobody waits for an answer, gRPC's pings find it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final, cast

import grpc
import grpc.aio
from lograft.wire.keepalive import client_options
from lograft.wire.limits import MAX_GRPC_MESSAGE_BYTES
from lograft.wire.status import LeaderHint

from brokerd.limits import MAX_PEER_CHANNELS, PEER_LIVENESS_MS, PEER_RESOLVE_MS
from metaquorum.metadata.image import MetadataImage
from metaquorum.process.settings import Address

logger = logging.getLogger(__name__)

_OPTIONS: Final = (
    ("grpc.max_send_message_length", MAX_GRPC_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_GRPC_MESSAGE_BYTES),
    *client_options(PEER_LIVENESS_MS),
    # A new channel is to be a new connection, not the one of the channel that was given up.
    ("grpc.use_local_subchannel_pool", 1),
    # A restarted peer must be found again in well under a second; the defaults wait for one to 120 seconds.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
    # A peer that comes back under another address (a pod does) must be found there as soon.
    ("grpc.dns_min_time_between_resolutions_ms", PEER_RESOLVE_MS),
    # Calls inside the cluster never go through a proxy of the environment.
    ("grpc.enable_http_proxy", 0),
)


_FAILED: Final = (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN)


def peer_address(host: str, port: int) -> str:
    """Return the address of a server as gRPC takes it: an IPv6 address has brackets there, and has none in the metadata."""
    return str(Address(host=host, port=port))


def replication_address(image: MetadataImage, broker_id: int) -> Address | None:
    """Return where another broker takes connections for replication; None: it is not registered, or without such a port."""
    broker = image.brokers.get(broker_id)
    if broker is None or broker.replication_port == 0:
        return None
    return Address(host=broker.host, port=broker.replication_port)


def hinted_address(hint: LeaderHint | None) -> str | None:
    """Return where a refusal says that the leader is; None: it does not."""
    return peer_address(hint.host, hint.port) if hint is not None and hint.host else None


class _Peer:
    """One channel, how many calls use it now, and whether it gets no more."""

    __slots__ = ("channel", "is_given_up", "use_count")

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self.use_count = 0
        self.is_given_up = False


class PeerChannels:
    """Channels by `host:port`."""

    def __init__(self) -> None:
        self._peers: OrderedDict[str, _Peer] = OrderedDict()
        # A dictionary for its order, in which they are closed.
        self._given_up: dict[_Peer, None] = {}

    @asynccontextmanager
    async def use(self, address: str) -> AsyncGenerator[grpc.aio.Channel]:
        """Lend the channel to `address`; it stays open while it is lent."""
        peer = self._peers.get(address)
        if peer is None:
            await self._make_room()
            peer = self._peers.get(address)
        if peer is None:
            peer = _Peer(grpc.aio.insecure_channel(address, options=_OPTIONS))
            self._peers[address] = peer
        self._peers.move_to_end(address)
        peer.use_count += 1
        try:
            yield peer.channel
        finally:
            peer.use_count -= 1
            if peer.is_given_up and peer.use_count == 0:
                self._given_up.pop(peer, None)
                await peer.channel.close()

    def give_up(self, address: str, channel: grpc.aio.Channel) -> None:
        """Lend a channel no more, for a call over it got no answer in time; calls under way on it go on.

        To be called while it is lent. One slow answer costs a new connection, no more.
        """
        peer = self._peers.get(address)
        if peer is None or peer.channel is not channel:
            return
        logger.info("%s owes an answer: what follows goes over a new connection", address)
        del self._peers[address]
        peer.is_given_up = True
        self._given_up[peer] = None

    async def close(self) -> None:
        """Close every channel; calls under way fail."""
        peers = [*self._peers.values(), *self._given_up]
        self._peers.clear()
        self._given_up.clear()
        for peer in peers:
            await peer.channel.close()

    async def _make_room(self) -> None:
        while len(self._peers) >= MAX_PEER_CHANNELS:
            idle = next((address for address, peer in self._peers.items() if peer.use_count == 0), None)
            if idle is None:
                return  # every channel is in use; the number of calls is bounded by the server's own limit
            await self._peers.pop(idle).channel.close()


async def is_ready_within(channel: grpc.aio.Channel, timeout_ms: int) -> bool:
    """Connect if need be; False when that fails or takes longer, and at once when the last attempt has failed.

    A call on a channel that was ready is known to have left; one that was refused before is known not to have. A channel whose
    attempt failed stays in that state until an attempt succeeds, so a wait for a change of state would last until the server is
    back. The caller should pause before it asks again.
    """
    state = channel.get_state(try_to_connect=True)
    if state is grpc.ChannelConnectivity.READY:
        return True
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            while state not in _FAILED:
                await channel.wait_for_state_change(state)
                state = channel.get_state(try_to_connect=True)
                if state is grpc.ChannelConnectivity.READY:
                    return True
    except TimeoutError:
        pass
    return False


def unary_method(channel: grpc.aio.Channel, method: str) -> grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]:
    """Return a unary method that takes and gives serialized messages."""
    return cast("grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]", channel.unary_unary(method))
