# SPDX-License-Identifier: Apache-2.0
"""A topic's `compression.type` over real gRPC: which batches are recompressed, stored unchanged, or refused."""

from __future__ import annotations

import random

import pytest
from lograft.v1 import errors_pb2, log_pb2
from lograft.wire.batch import Codec, RecordBatch, encode_batch, iter_batches
from lograft.wire.codes import ErrorCode
from lograft.wire.compression import ZSTD_LEVEL, compress
from lograft.wire.encoded import EncodedBatch
from lograft.wire.header import read_header
from lograft.wire.limits import HEADER_BYTES, MAX_ZSTD_LEVEL

from brokerd.api.log_service.batch_check import THREAD_CHECK_BYTES
from brokerd.tests.support import Client, FetchStream, ProduceStream, refusal
from metaquorum.metadata.topic_configs import TOPIC_CONFIGS

VALUES = [b"a value that compresses, number %d" % number for number in range(300)]


def sent_batch(stream: ProduceStream, codec: Codec, sequence: int) -> bytes:
    """A batch of the stream's producer with keys, headers and timestamps."""
    producer_id, producer_epoch = stream.producer
    return bytes(
        encode_batch(
            VALUES,
            keys=[b"k%d" % number for number in range(len(VALUES))],
            timestamps_ms=[1_700_000_000_000 + number for number in range(len(VALUES))],
            headers=[[("h", b"%d" % number)] for number in range(len(VALUES))],
            codec=codec,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=sequence,
        )
    )


def at_level(batch: bytes, level: int) -> bytes:
    """The same batch, compressed by its producer at another level."""
    header = read_header(batch)
    payload = compress(batch[HEADER_BYTES:], level)
    return bytes(EncodedBatch(header._replace(attributes=header.attributes | Codec.ZSTD), [payload]).join())


async def stored_batches(client: Client, count: int) -> list[bytes]:
    """The first batches of the topic as a fetch stream gives them."""
    fetch = FetchStream(client)
    await fetch.open(("t", 0, 0))
    found: list[bytes] = []
    while len(found) < count:
        body = (await fetch.chunk()).body
        found += [body[position : position + header.size_bytes] for position, header in iter_batches(body)]
    fetch.call.cancel()
    return found


@pytest.mark.parametrize(
    ("kind", "kept"),
    [("none", (Codec.NONE,) * 3), ("zstd", (Codec.ZSTD,) * 3), ("producer", (Codec.NONE, Codec.ZSTD, Codec.ZSTD))],
)
async def test_11_batches_are_stored_in_the_codec_of_the_topic(
    client: Client, kind: str, kept: tuple[Codec, ...]
) -> None:
    """Behaviour 11: a batch with another codec is recompressed. One with the same codec at any level, or `producer`, is unchanged."""
    await client.create_topic("t", compression_type=kind, compression_zstd_level="5")
    stream = ProduceStream(client)
    await stream.open(("t", 0))
    count = len(VALUES)
    sent = [
        sent_batch(stream, Codec.NONE, 0),
        sent_batch(stream, Codec.ZSTD, count),
        at_level(sent_batch(stream, Codec.NONE, 2 * count), 12),
    ]
    for number, body in enumerate(sent):
        await stream.send_body(body)
        (receipt,) = await stream.receipts(number + 1)
        assert list(receipt.base_offsets) == [number * count]
    stored = await stored_batches(client, 3)
    assert tuple(read_header(batch).codec for batch in stored) == kept
    for came, found in zip(sent, stored, strict=True):
        before, after = RecordBatch(came), RecordBatch(found)
        if before.header.codec is after.header.codec:
            assert found[16:] == came[16:]
        fields = (
            "producer_id",
            "producer_epoch",
            "base_sequence",
            "record_count",
            "base_timestamp_ms",
            "max_timestamp_ms",
        )
        assert [getattr(after.header, field) for field in fields] == [getattr(before.header, field) for field in fields]
        assert [record[1:] for record in after.records()] == [record[1:] for record in before.records()]
    # A resend of a recompressed batch is recognised as the same batch.
    again = ProduceStream(client)
    producer = log_pb2.ProducerIdentity(producer_id=stream.producer[0], producer_epoch=stream.producer[1])
    await again.open(("t", 0), producer=producer)
    await again.send_body(sent[0])
    (receipt,) = await again.receipts(1)
    assert (list(receipt.base_offsets), list(receipt.duplicates)) == ([0], [0])


async def test_batch_with_a_wrong_checksum_is_refused_before_it_is_recompressed(client: Client) -> None:
    """Recompression computes a new CRC, so the original CRC must be checked before."""
    await client.create_topic("t", compression_type="zstd")
    stream = ProduceStream(client)
    await stream.open(("t", 0))
    body = bytearray(sent_batch(stream, Codec.NONE, 0))
    body[-1] ^= 1
    await stream.send_body(bytes(body))
    assert (await stream.route_end()).error.code == errors_pb2.ERROR_CODE_CORRUPT_BATCH
    assert (await client.read("t")).high_watermark == 0


async def test_batch_too_large_in_the_codec_of_the_topic_ends_its_route(client: Client) -> None:
    """A few bytes that inflate to more than the topic takes are refused, and the batch before them stays."""
    await client.create_topic("t", compression_type="none", max_message_bytes="100000")
    stream = ProduceStream(client)
    await stream.open(("t", 0), without_idempotence=True)
    for size_bytes in (90_000, 100_000, 30_000_000):
        values = [bytes(10_000)] * (size_bytes // 10_000)
        await stream.send_body(bytes(encode_batch(values, timestamps_ms=1, codec=Codec.ZSTD)))
    (receipt,) = await stream.receipts(1)
    assert list(receipt.base_offsets) == [0]
    end = await stream.route_end()
    assert end.first_failed_batch_number == 2
    assert end.error.code == errors_pb2.ERROR_CODE_MESSAGE_TOO_LARGE
    assert "compression.type=none" in end.error.message
    (batch,) = await stored_batches(client, 1)
    assert len(batch) > 90_000


async def test_costly_batch_is_checked_and_recompressed_in_one_go(client: Client) -> None:
    """Above the size from which checks run in a thread, in both directions."""
    await client.create_topic("t", compression_type="zstd", max_message_bytes=str(4 * THREAD_CHECK_BYTES))
    stream = ProduceStream(client)
    await stream.open(("t", 0), without_idempotence=True)
    for codec in (Codec.NONE, Codec.ZSTD):
        body = encode_batch([b"x" * 100_000] * 25, timestamps_ms=1, codec=codec)
        await stream.send_body(bytes(body))
    await stream.receipts(2)
    stored = await stored_batches(client, 2)
    assert stored[0][16:] == stored[1][16:], "the broker and the producer compress alike by default"


@pytest.mark.parametrize(("kind", "kept"), [("zstd", Codec.ZSTD), ("none", Codec.NONE), ("producer", Codec.NONE)])
async def test_plain_append_is_stored_in_the_codec_of_the_topic(client: Client, kind: str, kept: Codec) -> None:
    """A client that sends single records chooses no codec; the topic does."""
    await client.create_topic("t", compression_type=kind)
    await client.append("t", VALUES)
    (batch,) = await stored_batches(client, 1)
    assert read_header(batch).codec is kept
    assert RecordBatch(batch).values() == VALUES
    assert [record.value for record in (await client.read("t")).records] == VALUES


async def test_noise_that_grows_beyond_the_limit_is_refused(client: Client) -> None:
    """A batch at the limit of the topic that does not compress is larger as a zstd frame."""
    await client.create_topic("t", compression_type="zstd", max_message_bytes="1024")
    overhead_bytes = len(encode_batch([bytes(900)], timestamps_ms=1)) - 900
    noise = random.Random(7).randbytes(1_024 - overhead_bytes)
    assert len(encode_batch([noise], timestamps_ms=1)) == 1_024
    failure = await refusal(client.append("t", [noise]))
    assert failure.code is ErrorCode.MESSAGE_TOO_LARGE
    assert "compression.type=zstd" in failure.message


async def test_unknown_codec_is_refused_at_the_creation_of_the_topic(client: Client) -> None:
    """Kafka's other codecs are not there, and a level that readers could not read is not offered."""
    for configs in ({"compression_type": "gzip"}, {"compression_zstd_level": str(MAX_ZSTD_LEVEL + 1)}):
        failure = await refusal(client.create_topic("t", **configs))
        assert failure.code is ErrorCode.INVALID_CONFIG
    assert TOPIC_CONFIGS["compression.zstd.level"].default == str(ZSTD_LEVEL)
