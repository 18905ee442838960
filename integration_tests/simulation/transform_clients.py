# SPDX-License-Identifier: Apache-2.0
"""Programs of the world that consume, transform and produce: members of a group whose offsets go with the rounds of an ingest.

A program reads the topic as a member of the SDK, and stages and commits over the generated stubs, as any language can. Each one has an
application id of its own, which its next process takes over. After anything that is not a commit it begins anew: it opens the ingest,
joins the group, and goes on where the group's offsets say. `IngestLaws` judges what comes out: each input once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from lograft import TopicPartition
from lograft._groups.offsets import OffsetsForDecision
from lograft.aio import Consumer
from lograft.errors import LograftError
from lograft.types import ConsumerRecord
from lograft.v1 import ingest_pb2 as pb

from integration_tests.simulation.clients import AFTER_ERROR_S, TOPIC
from integration_tests.simulation.ingest_clients import (
    FED_PARTITIONS,
    Attempt,
    IngestClient,
    IngestWorld,
    OpenIngest,
    commit_request,
    until_fed,
)
from integration_tests.simulation.ingest_laws import FED, TRANSFORM_GROUP, Commit
from integration_tests.simulation.process import SimProcess

POLL_TIMEOUT_MS: Final = 400
PROCESSING_LIMIT_MS: Final = 4_000
"""Processing limit of the members, in milliseconds."""
ROUND_RECORDS_MAX: Final = 40
"""Most inputs of one round."""


class TransformClient(IngestClient):
    """One such program, until the world is healed.

    Args:
        world: the world.
        process: its process.
        number: names its application, whichever process it is.
    """

    def __init__(self, world: IngestWorld, process: SimProcess, *, number: int) -> None:
        super().__init__(world, process)
        self._ingest_id = f"transform-{number}"

    async def run(self) -> None:
        """Work until the world is healed."""
        world = self._world
        await until_fed(world)
        while not world.is_healed:
            ingest = await self._open(self._ingest_id, pb.INGEST_KIND_REPEATED, topics=(FED,))
            if ingest is None:
                await asyncio.sleep(AFTER_ERROR_S)
                continue
            world.counts["transform begun"] += 1
            consumer = Consumer(
                world.bootstrap, group=TRANSFORM_GROUP, auto_commit=False, processing_limit_ms=PROCESSING_LIMIT_MS
            )
            try:
                await consumer.subscribe(TOPIC)
                await self._work(ingest, consumer)
            finally:
                await consumer.close()
        await self._brokers.close()

    async def _work(self, ingest: OpenIngest, consumer: Consumer) -> None:
        """Carry out rounds until one does not count."""
        world, rng = self._world, self._rng
        kept: dict[int, Attempt] = {}
        while not world.is_healed:
            try:
                records = await consumer.poll(ROUND_RECORDS_MAX, POLL_TIMEOUT_MS)
                if not records:
                    continue
                attempt = await self._attempt_again(ingest, 0, kept)
                if attempt is None or not await self._transform(ingest, attempt, records):
                    return
                if rng.random() < 0.03:
                    await self._abort(ingest)
                    return
                ends = {TopicPartition(each.topic, each.partition): each.offset + 1 for each in records}
                _, offsets = await consumer._for_decision(ends)  # pyright: ignore[reportPrivateUsage]
            except LograftError as error:
                world.counts[f"transform: {error.code.name}"] += 1
                return
            if not await self._commit_offsets(ingest, attempt, offsets):
                world.counts["transform round without a commit"] += 1
                return
            world.counts["transform round"] += 1
            ingest.round += 1

    async def _transform(self, ingest: OpenIngest, attempt: Attempt, records: Sequence[ConsumerRecord]) -> bool:
        """Stage an output for each input, and seal."""
        orders_id = self._world.orders_id
        for partition in sorted({each.partition for each in records}):
            values: list[bytes] = []
            for record in records:
                if record.partition == partition:
                    place = f"{partition}:{record.offset}"
                    value = f"{self._name}:{self._number()} of {ingest.ingest_id} from {place}".encode()
                    self._laws.transforms(value, (orders_id, partition), record.offset)
                    values.append(value)
            topic, target = ingest.topics[FED], partition % FED_PARTITIONS
            if not await self._stage_values(ingest, attempt, topic, target, values):
                return False
        return await self._seal(ingest, attempt)

    async def _commit_offsets(self, ingest: OpenIngest, attempt: Attempt, offsets: OffsetsForDecision) -> bool:
        places = tuple((topic_id, number, each.offset) for (topic_id, number), each in sorted(offsets.offsets.items()))
        commit = Commit(
            ingest_id=ingest.ingest_id,
            ingest_epoch=ingest.epoch,
            round=ingest.round,
            manifest=(attempt.entry,),
            group_id=TRANSFORM_GROUP,
            offsets=places,
        )
        request = commit_request(commit)
        request.offsets.member_id = offsets.member_id
        request.offsets.member_epoch = offsets.member_epoch
        request.offsets.commit_number = offsets.commit_number
        self._laws.asks(commit)
        return self._judge(commit, await self._call("CommitIngest", request))
