# SPDX-License-Identifier: Apache-2.0
"""Producer ids from the quorum, in blocks.

Owns the current block. Law: no id is handed out twice. The ids of a block that is lost with the process are never used.
"""

from __future__ import annotations

import asyncio
import logging

from lograft.internal.v1 import controller_pb2
from lograft.wire.codes import ErrorCode

from brokerd.controller_client.controller_calls import ControllerCalls, ControllerRefusedError
from brokerd.controller_client.lifecycle import BrokerLifecycle
from brokerd.failure import RefusedError, refused
from brokerd.limits import IDENTITY_WAIT_MS, PRODUCER_ID_LOW_WATER
from metaquorum.net.methods import Method

logger = logging.getLogger(__name__)


class ProducerIds:
    """Hands out producer ids from a block, and fetches the next block in advance."""

    def __init__(self, calls: ControllerCalls, registration: BrokerLifecycle) -> None:
        self._calls = calls
        self._registration = registration
        self._next_id = 0
        self._end_id = 0
        self._next_block: tuple[int, int] | None = None
        self._fetching = asyncio.Lock()
        self._prefetch: asyncio.Task[None] | None = None

    async def take(self, *, timeout_ms: int = IDENTITY_WAIT_MS) -> int:
        """Return a producer id that no other producer has.

        Args:
            timeout_ms: maximum milliseconds to wait for the quorum if the block is used up.

        Raises:
            RefusedError: the quorum gave no block in time.
        """
        while self._next_id >= self._end_id:
            if self._next_block is None:
                await self._fetch_within(timeout_ms)
            if self._next_block is not None:
                self._next_id, self._end_id = self._next_block
                self._next_block = None
        producer_id = self._next_id
        self._next_id += 1
        self._maybe_prefetch()
        return producer_id

    async def close(self) -> None:
        """Cancel a fetch in advance."""
        if self._prefetch is not None:
            self._prefetch.cancel()
            await asyncio.gather(self._prefetch, return_exceptions=True)

    def _maybe_prefetch(self) -> None:
        if self._end_id - self._next_id >= PRODUCER_ID_LOW_WATER or self._next_block is not None:
            return
        if self._prefetch is None or self._prefetch.done():
            self._prefetch = asyncio.create_task(self._fetch_ahead(), name="producer-ids")

    async def _fetch_within(self, timeout_ms: int) -> None:
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._fetch()
        except TimeoutError:
            message = "the metadata quorum gave no producer id in time"
            raise refused(ErrorCode.QUORUM_UNAVAILABLE, message, retry_after_ms=500) from None

    async def _fetch_ahead(self) -> None:
        try:
            await self._fetch()
        except RefusedError as error:
            logger.warning("no producer ids ahead of need: %s", error)

    async def _fetch(self) -> None:
        async with self._fetching:
            if self._next_block is not None:
                return  # another waiter has just fetched the block
            epoch = await self._registration.wait_registered(timeout_ms=IDENTITY_WAIT_MS)
            request = controller_pb2.AllocateProducerIdsRequest(
                cluster_id=self._registration.cluster_id,
                broker_id=self._registration.broker_id,
                broker_epoch=epoch,
            )
            # Repeating the request is harmless: the ids of a block whose answer was lost are never handed out.
            try:
                answer = await self._calls.call(
                    Method.ALLOCATE_PRODUCER_IDS,
                    request.SerializeToString(),
                    timeout_ms=IDENTITY_WAIT_MS,
                    is_read_only=True,
                )
            except ControllerRefusedError as error:
                message = f"the controller gave no producer ids: {error.failure.message}"
                raise refused(ErrorCode.BROKER_FENCED, message, retry_after_ms=500) from error
            response = controller_pb2.AllocateProducerIdsResponse.FromString(answer)
            first = response.first_producer_id
            self._next_block = (first, first + response.count)
