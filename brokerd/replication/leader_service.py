# SPDX-License-Identifier: Apache-2.0
"""What other brokers ask of this one: `Replicate` streams of followers, and `FetchRange`.

    service = ReplicateService(table)      # refuses until a leader is attached
    service.attach(leader)

Owns the translation of refusals. A refusal is the end of a stream.
"""

from __future__ import annotations

import asyncio
from typing import Final

from lograft.internal.v1 import replication_pb2 as pb
from lograft.wire.codes import ErrorCode

from brokerd.api.status import leader_hint
from brokerd.failure import Failure, RefusedError, refused
from brokerd.replication.leader_handshake import Leader
from brokerd.replication.leader_stream_shell import ReplicateStream
from metaquorum.net.link import CallError, ServedCall, Stream
from metaquorum.net.methods import Method
from metaquorum.net.service import RefusalError, ServiceTable

REQUEST_WINDOW_BYTES: Final = 1024 * 1024
"""Bytes that a follower may send ahead; 2,000 subscriptions have a fifth of that."""

NOT_READY_RETRY_MS: Final = 100
"""Advice to a broker that is met too early, in milliseconds."""


class ReplicateService:
    """See the module docstring.

    Args:
        table: where it is added.
    """

    def __init__(self, table: ServiceTable) -> None:
        self._leader: Leader | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        table.add_stream(Method.REPLICATE, pb.ReplicateRequest, self._replicate, window_bytes=REQUEST_WINDOW_BYTES)
        table.add(Method.FETCH_RANGE, pb.FetchRangeRequest, self._fetch_range)

    def attach(self, leader: Leader) -> None:
        """From here on this broker answers, as its followers see it."""
        self._leader = leader

    async def close(self) -> None:
        """From here on every request is refused, and the streams that are there end. Idempotent."""
        self._leader = None
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        # Not `gather`: it would take the cancellation of this one for theirs.
        if tasks:
            await asyncio.wait(tasks)

    async def _replicate(self, opening: pb.ReplicateRequest, stream: Stream) -> None:
        task = asyncio.current_task()
        assert task is not None, "streams are served by tasks"
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            await ReplicateStream(self._attached(), stream, opening).run()
        except RefusedError as error:
            raise _refusal(error.failure) from error
        except CallError:
            # The follower has ended it, or is gone.
            return

    def _fetch_range(self, request: pb.FetchRangeRequest, call: ServedCall) -> None:
        try:
            call.respond(self._attached().ranges.fetch_range(request).SerializeToString())
        except RefusedError as error:
            raise _refusal(error.failure) from error

    def _attached(self) -> Leader:
        if self._leader is None:
            raise refused(
                ErrorCode.OVERLOADED, "this broker is starting or stopping", retry_after_ms=NOT_READY_RETRY_MS
            )
        return self._leader


def _refusal(failure: Failure) -> RefusalError:
    return RefusalError(
        failure.code,
        failure.message,
        retry_after_ms=failure.retry_after_ms,
        leader=None if failure.leader is None else leader_hint(failure.leader),
    )
