# SPDX-License-Identifier: Apache-2.0
"""The InitProducer call, which hands out producer ids, and the check of an identity that a client presents."""

from __future__ import annotations

from typing import Final

from lograft.v1 import log_pb2
from lograft.wire.codes import ErrorCode
from lograft.wire.limits import PUBLISHING_PRODUCER_ID_MIN, STAGING_PRODUCER_ID_MIN

from brokerd.api.calls import ServicerContext, check_cluster, left_ms
from brokerd.api.parts import BrokerParts
from brokerd.clock import monotonic_ms
from brokerd.failure import refused
from brokerd.limits import IDENTITY_WAIT_MS
from metaquorum.metadata.loader import MetadataLoader

MAX_PRODUCER_EPOCH: Final = 32_767
"""Largest producer epoch: it is a signed 16-bit number in the batch header."""

IDENTITY_LAG_MS: Final = 1_000
"""Milliseconds that a call waits for this broker to learn of an id that another broker has handed out."""

IDENTITY_RETRY_MS: Final = 250
"""`retry_after_ms` for a client whose id this broker does not know yet."""


class InitProducerCalls:
    """The InitProducer call of one broker."""

    def __init__(self, parts: BrokerParts) -> None:
        self._parts = parts

    async def init_producer(
        self, request: log_pb2.InitProducerRequest, context: ServicerContext
    ) -> log_pb2.InitProducerResponse:
        """Serve one InitProducer.

        Raises:
            RefusedError: the quorum gave no id in time, or the request names another cluster.
        """
        check_cluster(request.cluster_id, self._parts.cluster_id)
        timeout_ms = left_ms(context, at_most_ms=IDENTITY_WAIT_MS)
        producer_id = await self._parts.producer_ids.take(timeout_ms=timeout_ms)
        return log_pb2.InitProducerResponse(
            producer=log_pb2.ProducerIdentity(producer_id=producer_id, producer_epoch=0)
        )


async def check_identity(observer: MetadataLoader, producer_id: int, producer_epoch: int) -> None:
    """Refuse an identity that, to this broker's knowledge, was never handed out: a later owner of the id would collide with it.

    Raises:
        RefusedError: INVALID_REQUEST, the numbers are out of range; METADATA_NOT_REACHED, this broker does not know the id. A broker
            without contact to the quorum learns late which ids others hand out.
    """
    if producer_id < 0 or not 0 <= producer_epoch <= MAX_PRODUCER_EPOCH:
        raise refused(
            ErrorCode.INVALID_REQUEST,
            f"producer {producer_id} epoch {producer_epoch} was never given out: ask for an id with InitProducer",
        )
    if producer_id >= STAGING_PRODUCER_ID_MIN:
        # The coordinators of ingests give these, and this broker cannot tell which. Another attempt never gets the same one.
        if producer_id >= PUBLISHING_PRODUCER_ID_MIN or producer_epoch != 0:
            message = f"producer {producer_id} epoch {producer_epoch} was never given out: open an attempt of an ingest"
            raise refused(ErrorCode.INVALID_REQUEST, message)
        return
    give_up_ms = monotonic_ms() + IDENTITY_LAG_MS
    while producer_id >= observer.image.next_producer_id:
        left_ms = give_up_ms - monotonic_ms()
        if not await observer.wait_for(observer.metadata_offset + 1, timeout_ms=left_ms):
            raise refused(
                ErrorCode.METADATA_NOT_REACHED,
                f"producer {producer_id} is not known here: try again if this cluster has just given it out, else ask for another",
                retry_after_ms=IDENTITY_RETRY_MS,
            )
