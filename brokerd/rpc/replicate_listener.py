# SPDX-License-Identifier: Apache-2.0
"""The replication port of a broker: `Replicate` streams of followers, and `FetchRange`, over plain connections.

    listener = ReplicateListener(leader)
    await listener.open("127.0.0.1", 0)      # others hear of the port from the registration

Owns the connections. A refusal is the last message of a stream.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from lograft.wire.codes import ErrorCode

from brokerd.errors import AddressInUseError
from brokerd.failure import Failure, RefusedError
from brokerd.frame_stream import REPLICATE_GREETING, FrameStream
from brokerd.rpc.replicate_codec import encode_refusal
from brokerd.rpc.replicate_handshake import Leader
from brokerd.rpc.replicate_stream import ReplicateStream
from metaquorum.runtime.frames import BadFrameError
from metaquorum.runtime.plain_listener import listening_socket
from metaquorum.settings import Address

logger = logging.getLogger(__name__)

MAX_REQUEST_BYTES: Final = 1024 * 1024
"""Most bytes of one message of a follower; 2,000 subscriptions have a fifth of that."""


class ReplicateListener:
    """Takes connections of followers for one broker.

    Attributes:
        leader: this broker, as its followers see it.
        port: where; 0 before `open`.
    """

    def __init__(self, leader: Leader) -> None:
        self.leader = leader
        self.port = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._streams: set[FrameStream] = set()

    async def open(self, host: str, port: int) -> None:
        """Listen; the system chooses the port for 0.

        Raises:
            AddressInUseError: the address cannot be listened on.
        """
        try:
            listening = listening_socket(host, port)
        except OSError as error:
            address = Address(host=host, port=port)
            reason = f"cannot listen on {address}: {error.strerror}; choose another --replication-port"
            raise AddressInUseError(reason) from error
        self._server = await asyncio.get_running_loop().create_server(self._new_stream, sock=listening)
        self.port = listening.getsockname()[1]

    async def close(self) -> None:
        """Take no more connections and end those that are there. Idempotent."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # Nobody is waited for: a follower that does not read would hold up the stop.
        for stream in tuple(self._streams):
            stream.cancel()

    def _new_stream(self) -> FrameStream:
        return FrameStream(greeting=REPLICATE_GREETING, max_bytes=MAX_REQUEST_BYTES, on_open=self._take)

    def _take(self, stream: FrameStream) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(stream), name="replicate-plain")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, stream: FrameStream) -> None:
        self._streams.add(stream)
        try:
            await ReplicateStream(self.leader, stream).run()
        except RefusedError as error:
            _refuse(stream, error.failure)
        except BadFrameError as error:
            logger.warning("plain connection of a follower ended: %s", error)
        except OSError as error:
            logger.info("plain connection of a follower broke: %s", error)
        except Exception as error:
            logger.error("stream failed by a fault of this broker", exc_info=error)
            _refuse(stream, Failure(code=ErrorCode.INTERNAL, message="a fault of the broker; its log says more"))
        finally:
            stream.close()
            self._streams.discard(stream)


def _refuse(stream: FrameStream, failure: Failure) -> None:
    try:
        stream.write_now(encode_refusal(failure))
    except ConnectionResetError:
        logger.debug("nobody hears the refusal: %s", failure.message)
