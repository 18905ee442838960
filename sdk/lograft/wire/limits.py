# SPDX-License-Identifier: Apache-2.0
"""Limits and sizes of the wire format that clients and servers must agree on.

Owns numbers only. Every bound is inclusive unless its comment says otherwise; units stand in the names.
"""

from __future__ import annotations

HEADER_BYTES = 61
"""Size of the header of a record batch."""

MAGIC = 16
"""Batch format number of a protobuf column payload (`lograft.v1.Records`)."""

KAFKA_MAGIC = 2
"""Batch format number of Kafka's row payload: reserved, refused."""

MAX_RECORDS_PER_BATCH = 100_000
"""Most records in one batch."""

MAX_BATCH_BYTES = 8 * 1024 * 1024
"""Hard limit of one batch with its header; no topic setting may exceed it."""

DEFAULT_MAX_MESSAGE_BYTES = 1024 * 1024
"""Default of the topic config `max.message.bytes`: most bytes of one batch with its header."""

MAX_INFLATED_BYTES = 64 * 1024 * 1024
"""Most bytes of a payload once inflated."""

MAX_GENERIC_PAYLOAD_BYTES = 8 * 1024 * 1024
"""Most bytes of an inflated payload that carries record headers, or whose fields stand in an unusual order.

Such payloads go through the generated parser, which may take twenty times their size in memory.
"""

MAX_ZSTD_WINDOW_BYTES = 8 * 1024 * 1024
"""Largest window of a zstd frame without a content size (RFC 8878 section 3.1.1.1.2 recommends support up to 8 MB)."""

MAX_ZSTD_LEVEL = 19
"""The highest zstd level, inclusive; those above it use windows over `MAX_ZSTD_WINDOW_BYTES`."""

MAX_TIMESTAMP_MS = 253_402_300_799_999
"""Largest timestamp of a record: the last millisecond of the year 9999. The smallest is 0 (1970-01-01 UTC).

Datetime types of Python, Spark and Arrow fail beyond it, so a stored record beyond it could not be read back.
"""

MAX_OFFSET = 2**63 - 2
"""Largest offset of a record; the next offset then still fits int64."""

MAX_GRPC_MESSAGE_BYTES = 16 * 1024 * 1024
"""Most bytes of one gRPC message, both ways, on every channel and server."""

MAX_ROUTE = 1_048_575
"""Largest route number on a produce or fetch stream; the smallest is 0."""

MAX_IN_FLIGHT_BATCHES = 16
"""Most unacknowledged batches of one route."""

DEDUP_WINDOW_BATCHES = 16
"""Batches per producer and partition that the leader remembers; as many as may be in flight."""

DEFAULT_MAX_CHUNK_BYTES = 1024 * 1024
"""Default of the most bytes in one fetch chunk (a single larger batch is still sent)."""

MAX_STATUS_METADATA_BYTES = 8_192
"""Most bytes of a failed call's trailers as HTTP/2 counts them: above, gRPC peers refuse them, some of them by chance."""

MAX_STATUS_MESSAGE_BYTES = 1_000
"""Most bytes of UTF-8 of a status message; longer ones are cut.

On the wire it takes up to 3 times as much as text, and 4/3 times once more inside the details.
"""

MAX_STATUS_DETAIL_BYTES = 2_000
"""Most bytes of packed status details: with the message within `MAX_STATUS_METADATA_BYTES`, even in base64."""

BATCH_OVERHEAD_BYTES = HEADER_BYTES + 14 * 6
"""Most bytes of an uncompressed batch besides what its records take: the header, and tag and length of every field."""

RECORD_OVERHEAD_BYTES = 4 + 4 + 5 + 5 + 10 + 5 + 5
"""Most bytes of a record besides key, value and headers.

Two lengths, two null indexes, timestamp, offset, header count.
"""

RECORD_HEADER_OVERHEAD_BYTES = 6 + 6 + 5
"""Most bytes of a record header besides its key and value: two tags with lengths and a null index."""
