# SPDX-License-Identifier: Apache-2.0
"""Requests of one core to its peers: each is sent, and its response or failure becomes an event.

Decides nothing and never retries: the core does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from metaquorum.raft.effects import Send
from metaquorum.raft.events import RequestFailed, ResponseReceived
from metaquorum.raft.messages import Response
from metaquorum.replica.quorum_transport import PeerFailureError, QuorumTransport

logger = logging.getLogger(__name__)


class PeerRequests:
    """Sends what the core wants sent.

    Args:
        transport: way to the peers.
        on_event: takes the outcome.
    """

    def __init__(
        self, transport: QuorumTransport, *, on_event: Callable[[ResponseReceived | RequestFailed], None]
    ) -> None:
        self._transport = transport
        self._on_event = on_event

    def send(self, effect: Send) -> None:
        """Send a request; its outcome comes later."""
        self._transport.send(
            effect.address,
            effect.request,
            timeout_ms=effect.timeout_ms,
            on_answer=partial(self._told, effect.request_id),
        )

    def _told(self, request_id: int, outcome: Response | PeerFailureError) -> None:
        if isinstance(outcome, PeerFailureError):
            logger.debug("event=request_failed error=%s", outcome)
            self._on_event(RequestFailed(request_id=request_id, failure=outcome.failure))
        else:
            self._on_event(ResponseReceived(request_id=request_id, response=outcome))
