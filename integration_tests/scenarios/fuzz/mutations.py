# SPDX-License-Identifier: Apache-2.0
"""Hostile input: mutated batches, frames and names, made from valid ones by a seeded generator.

Every mutation is a pure function of the generator and the valid bytes, so a seed determines the input. The fuzzer sends them through a
real port. Unit tests of the codec use the same mutations.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

import zstandard
from crc32c import crc32c
from lograft.v1 import records_pb2

HEADER_BYTES = 61
CRC_POSITION, CRC_COVERS_FROM = 17, 21
INTERESTING = [0, 1, 2, 16, 127, 128, 255, 2**15 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1]
INT_FIELDS = [(0, 8), (8, 4), (12, 4), (16, 1), (21, 2), (23, 4), (27, 8), (35, 8), (43, 8), (51, 2), (53, 4), (57, 4)]
BOMB_BYTES = 256 * 1024 * 1024


def with_crc(batch: bytearray) -> bytearray:
    """Set the right checksum and length, so that the input reaches the checks behind them."""
    if len(batch) >= HEADER_BYTES:
        struct.pack_into(">i", batch, 8, len(batch) - 12)
        struct.pack_into(">I", batch, CRC_POSITION, crc32c(memoryview(batch)[CRC_COVERS_FROM:]))
    return batch


def flip_bits(rng: random.Random, batch: bytes) -> bytearray:
    """Flip one to eight bits anywhere."""
    mutated = bytearray(batch)
    for _ in range(rng.randint(1, 8)):
        mutated[rng.randrange(len(mutated))] ^= 1 << rng.randrange(8)
    return mutated


def flip_bits_with_crc(rng: random.Random, batch: bytes) -> bytearray:
    """Flip bits and repair the checksum."""
    return with_crc(flip_bits(rng, batch))


def truncate(rng: random.Random, batch: bytes) -> bytearray:
    """Cut off the end."""
    return bytearray(batch[: rng.randrange(len(batch))])


def truncate_with_crc(rng: random.Random, batch: bytes) -> bytearray:
    """Cut off the end, and repair length and checksum."""
    return with_crc(truncate(rng, batch))


def extend(rng: random.Random, batch: bytes) -> bytearray:
    """Add garbage, with or without a repaired header."""
    mutated = bytearray(batch) + rng.randbytes(rng.randint(1, 200))
    return with_crc(mutated) if rng.random() < 0.5 else mutated


def set_header_field(rng: random.Random, batch: bytes) -> bytearray:
    """Set one header field to an odd number, and repair the checksum."""
    mutated = bytearray(batch)
    position, size = rng.choice(INT_FIELDS)
    value = rng.choice(INTERESTING) if rng.random() < 0.7 else rng.getrandbits(64)
    mutated[position : position + size] = (value & (2 ** (8 * size) - 1)).to_bytes(size, "big")
    struct.pack_into(">I", mutated, CRC_POSITION, crc32c(memoryview(mutated)[CRC_COVERS_FROM:]))
    return mutated


def record_count_bomb(rng: random.Random, batch: bytes) -> bytearray:
    """Claim very many empty records."""
    count = rng.choice([100_001, 1_000_000, 2**31 - 1])
    payload = records_pb2.Records(value_length=0).SerializeToString()
    return with_payload(batch, payload, count)


def zstd_bomb(rng: random.Random, batch: bytes) -> bytearray:
    """Compress far more than the limit of inflated bytes, with or without the size in the frame."""
    chunk = b"\0" * (1024 * 1024)
    compressor = zstandard.ZstdCompressor(level=1, write_content_size=rng.random() < 0.5).compressobj(
        size=BOMB_BYTES if rng.random() < 0.5 else -1
    )
    data = b"".join(compressor.compress(chunk) for _ in range(BOMB_BYTES // len(chunk))) + compressor.flush()
    mutated = with_payload(batch, data, 1)
    mutated[22] |= 4
    return with_crc(mutated)


def mutate_payload(rng: random.Random, batch: bytes) -> bytearray:
    """Change the columns through the generated code, so that the message stays well-formed."""
    records = records_pb2.Records()
    try:
        records.ParseFromString(bytes(batch[HEADER_BYTES:]))
    except Exception:
        return flip_bits_with_crc(rng, batch)
    field = rng.choice(
        [
            "value_lengths",
            "null_values",
            "key_lengths",
            "null_keys",
            "timestamp_deltas_ms",
            "offset_deltas",
            "header_counts",
        ]
    )
    values = getattr(records, field)
    number = rng.choice([0, 1, 5, 2**31 - 1]) if "lengths" in field else rng.choice([-1, 0, 1, 7, 2**31 - 1, -(2**31)])
    if len(values) and rng.random() < 0.6:
        values[rng.randrange(len(values))] = number
    else:
        values.extend([number] * rng.randint(1, 5))
    if rng.random() < 0.2:
        records.value_length = rng.choice([0, 1, 2**31, 2**32 - 1])
    count = struct.unpack_from(">i", batch, 57)[0]
    return with_payload(batch, records.SerializeToString(), count)


def with_payload(batch: bytes, payload: bytes, count: int) -> bytearray:
    """Replace payload and record count, with a matching header."""
    mutated = bytearray(batch[:HEADER_BYTES]) + payload
    struct.pack_into(">i", mutated, 23, count - 1)
    struct.pack_into(">i", mutated, 57, count)
    return with_crc(mutated)


BATCH_MUTATIONS: list[Callable[[random.Random, bytes], bytearray]] = [
    flip_bits, flip_bits_with_crc, truncate, truncate_with_crc, extend, set_header_field, set_header_field,
    record_count_bomb, mutate_payload, mutate_payload,
]  # fmt: skip

NAMES = [
    "", ".", "..", "/", "a/b", "../../etc/passwd", "a" * 250, "a" * 10_000, "nul\0name", "\x01", "topic name", "t\u00f6pic", "\u202e",
    "con:", "a\\b", "%2e%2e", "\ud7ff", "-", "_", "__cluster_metadata/..",
]  # fmt: skip


def odd_name(rng: random.Random) -> str:
    """Return a name from the table or a random one."""
    if rng.random() < 0.6:
        return rng.choice(NAMES)
    return "".join(
        chr(rng.choice([rng.randrange(1, 0xD7FF), rng.randrange(32, 127)])) for _ in range(rng.randint(0, 300))
    )


def mutate_frame(rng: random.Random, frame: bytes) -> bytes:
    """Damage a serialized protobuf message: bits, cuts, insertions, repeated pieces."""
    mutated = flip_bits(rng, frame) if rng.random() < 0.6 else bytearray(frame)
    if rng.random() < 0.4:
        mutated = mutated[: rng.randrange(len(mutated) + 1)]
    if rng.random() < 0.4:
        position = rng.randrange(len(mutated) + 1)
        mutated[position:position] = rng.randbytes(rng.randint(1, 20))
    if rng.random() < 0.2:
        mutated = mutated * 2
    return bytes(mutated)
