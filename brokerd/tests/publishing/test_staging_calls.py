# SPDX-License-Identifier: Apache-2.0
"""What clients may append to staging topics, over gRPC: who, which records, how much."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from lograft.v1 import admin_pb2, errors_pb2, log_pb2
from lograft.wire.codes import ErrorCode

from brokerd.process.server import BrokerServer
from brokerd.process.standalone import standalone_settings
from brokerd.publishing.quota import StagingQuota
from brokerd.tests.publishing.staging_clients import PUBLISHING, STAGING, RemoteAttempt, staged_topic
from brokerd.tests.support import WAIT_S, Client, ProduceStream, refusal, running_broker
from metaquorum.process.settings import SettingsError


def sequence(producer_id: int, *, epoch: int = 0, base: int = 0) -> log_pb2.AppendSequence:
    producer = log_pb2.ProducerIdentity(producer_id=producer_id, producer_epoch=epoch)
    return log_pb2.AppendSequence(producer=producer, base_sequence=base)


async def end_of_route(client: Client, topic: str, **fields: object) -> ErrorCode:
    """Return the code with which a route of a new produce stream ends."""
    stream = ProduceStream(client)
    await stream.open((topic, 0), **fields)
    return ErrorCode((await stream.route_end()).error.code)


async def test_only_attempts_stage_and_they_stage_only(tmp_path: Path) -> None:
    """Over Append and over a stream; a publishing producer id is nobody's."""
    async with running_broker(tmp_path) as server, staged_topic(server) as (client, _, name):
        assert (await RemoteAttempt(client, name, 0, 7).stage(b"a", b"b")).ranges[0].base_offset == 0
        for topic, fields, code in (
            (name, {}, ErrorCode.INVALID_REQUEST),
            (name, {"sequence": sequence(1)}, ErrorCode.INVALID_REQUEST),
            (name, {"sequence": sequence(PUBLISHING)}, ErrorCode.INVALID_REQUEST),
            (name, {"sequence": sequence(STAGING, epoch=1)}, ErrorCode.INVALID_REQUEST),
            ("t", {"sequence": sequence(STAGING)}, ErrorCode.INVALID_REQUEST),
            ("t", {"sequence": sequence(PUBLISHING + 1)}, ErrorCode.INVALID_REQUEST),
            ("__staging-nothing", {"sequence": sequence(STAGING)}, ErrorCode.INVALID_TOPIC_NAME),
        ):
            status = await refusal(client.append(topic, [b"x"], partition=0, **fields))
            assert status.code is code, (topic, fields)

        producer = log_pb2.ProducerIdentity(producer_id=STAGING + 8, producer_epoch=0)
        stream = ProduceStream(client)
        await stream.open((name, 0), ("t", 0), producer=producer)
        assert ErrorCode((await stream.route_end(1)).error.code) is ErrorCode.INVALID_REQUEST
        await stream.produce([b"c"])
        assert list((await stream.receipts(1))[0].base_offsets) == [2]
        assert await end_of_route(client, name) is ErrorCode.INVALID_REQUEST
        assert await end_of_route(client, name, without_idempotence=True) is ErrorCode.INVALID_REQUEST
        forged = ProduceStream(client)
        wrong = log_pb2.ProducerIdentity(producer_id=PUBLISHING, producer_epoch=0)
        await forged.send(log_pb2.ProduceRequest(open=log_pb2.ProduceOpen(producer=wrong)))
        assert (await forged.failure()).code is ErrorCode.INVALID_REQUEST
        assert (await client.read("t")).records == []


async def test_resend_of_an_attempt_is_a_duplicate(tmp_path: Path) -> None:
    """As of any idempotent producer."""
    async with running_broker(tmp_path) as server, staged_topic(server) as (client, _, name):
        for is_duplicate in (False, True):
            response = await client.append(name, [b"a"], partition=0, sequence=sequence(STAGING))
            assert response.ranges[0].base_offset == 0
            assert response.ranges[0].duplicate is is_duplicate
        gap = await refusal(client.append(name, [b"a"], partition=0, sequence=sequence(STAGING, base=5)))
        assert gap.code is ErrorCode.OUT_OF_ORDER_SEQUENCE


async def test_topic_judges_what_is_staged_for_it(tmp_path: Path) -> None:
    """Keys, size and codec, although the staging topic itself asks for nothing: a decision cannot be refused afterwards."""
    configs = {"cleanup_policy": "compact", "max_message_bytes": "2000", "compression_type": "zstd"}
    async with running_broker(tmp_path) as server, staged_topic(server, **configs) as (client, _, name):
        for values, code in ([[b"no key"], ErrorCode.INVALID_BATCH], [[b"x" * 3000], ErrorCode.MESSAGE_TOO_LARGE]):
            status = await refusal(client.append(name, values, partition=0, sequence=sequence(STAGING)))
            assert status.code is code
        producer = log_pb2.ProducerIdentity(producer_id=STAGING, producer_epoch=0)
        stream = ProduceStream(client)
        opened = await stream.open((name, 0), producer=producer)
        assert opened.routes[0].max_batch_bytes == 2000
        await stream.produce([b"no key"])
        end = await stream.route_end()
        assert end.error.code == errors_pb2.ERROR_CODE_INVALID_BATCH
        record = log_pb2.Record(key=b"k", value=b"v" * 1000)
        request = log_pb2.AppendRequest(topic=name, partition=0, records=[record], sequence=sequence(STAGING))
        await client.log.Append(request, timeout=WAIT_S)
        assert server.staging_quota is not None
        assert 61 < server.staging_quota.used_bytes < 900, "it is compressed"


async def test_deleted_topic_takes_nothing(tmp_path: Path) -> None:
    """Its staging topic has gone with it."""
    async with running_broker(tmp_path) as server, staged_topic(server) as (client, _, name):
        await client.admin.DeleteTopic(admin_pb2.DeleteTopicRequest(topic="t"), timeout=WAIT_S)
        status = await refusal(client.append(name, [b"a"], partition=0, sequence=sequence(STAGING)))
        assert status.code is ErrorCode.UNKNOWN_TOPIC


async def test_quota_of_the_broker(tmp_path: Path) -> None:
    """Beyond it clients get LIMIT_EXCEEDED; the broker measures by itself, so freed space counts."""
    measured, measure = asyncio.Event(), StagingQuota.measure

    async def measure_and_tell(quota: StagingQuota) -> None:
        await measure(quota)
        measured.set()

    with (
        mock.patch("brokerd.process.server.STAGING_SWEEP_MS", 20),
        mock.patch.object(StagingQuota, "measure", measure_and_tell),
    ):
        server = BrokerServer(replace(standalone_settings(tmp_path, port=0), staging_max_bytes=8 * 1024 * 1024))
        await server.start()
        try:
            await server.wait_serving(timeout_ms=int(WAIT_S * 1000))
            async with staged_topic(server) as (client, _, name):
                attempt = RemoteAttempt(client, name, 0, 0)
                for _ in range(8):
                    await attempt.stage(bytes(1_000_000))
                status = await refusal(attempt.stage(bytes(1_000_000)))
                assert status.code is ErrorCode.LIMIT_EXCEEDED
                assert "ingest.staging.max.bytes" in status.message
                await client.append("t", [bytes(1_000_000)])
                manager, quota = server.replica_manager, server.staging_quota
                assert manager is not None
                assert isinstance(quota, StagingQuota)
                image = server.observer.image.topic_by_name(name)
                assert image is not None
                replica = manager.find(image.topic_id, 0)
                assert replica is not None
                await replica.delete_before(None, 0)
                measured.clear()
                async with asyncio.timeout(WAIT_S):
                    await measured.wait()
                assert quota.used_bytes == 0
                await attempt.stage(bytes(1_000_000))
        finally:
            await server.stop()


def test_tiny_quota_is_refused(tmp_path: Path) -> None:
    """The error names the option."""
    with pytest.raises(SettingsError, match="--ingest-staging-max-bytes"):
        replace(standalone_settings(tmp_path, port=0), staging_max_bytes=5)
