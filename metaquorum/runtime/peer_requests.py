# SPDX-License-Identifier: Apache-2.0
"""Requests of one core to its peers: each is sent, and its response or failure becomes an event.

Owns the tasks that wait for answers. Decides nothing and never retries: the core does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from metaquorum.raft.effects import Send
from metaquorum.raft.events import RequestFailed, ResponseReceived
from metaquorum.raft.messages import FetchRequest, Response
from metaquorum.runtime.transport import GrpcTransport, PeerFailureError

logger = logging.getLogger(__name__)


class PeerRequests:
    """Sends what the core wants sent.

    Args:
        transport: way to the peers; closed with this.
        on_event: takes the outcome.
        on_failure: told of an error that is none of the peer's.
    """

    def __init__(
        self,
        transport: GrpcTransport,
        *,
        on_event: Callable[[ResponseReceived | RequestFailed], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._transport = transport
        self._on_event = on_event
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()

    def send(self, effect: Send) -> None:
        """Send a request; its outcome comes later."""
        request = effect.request
        told = partial(self._told, effect.request_id)
        if isinstance(request, FetchRequest) and self._transport.fetch_by_link(
            effect.address, request, timeout_ms=effect.timeout_ms, on_answer=told
        ):
            return
        task = self._loop.create_task(self._call(effect))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def close(self) -> None:
        """Wait for nothing any more, and close the transport."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._transport.close()

    async def _call(self, effect: Send) -> None:
        try:
            response = await self._transport.call(effect.address, effect.request, timeout_ms=effect.timeout_ms)
        except PeerFailureError as error:
            self._told(effect.request_id, error)
        else:
            self._told(effect.request_id, response)

    def _told(self, request_id: int, outcome: Response | PeerFailureError) -> None:
        if isinstance(outcome, PeerFailureError):
            logger.debug("event=request_failed error=%s", outcome)
            self._on_event(RequestFailed(request_id=request_id, failure=outcome.failure))
        else:
            self._on_event(ResponseReceived(request_id=request_id, response=outcome))

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_failure(error)
