# SPDX-License-Identifier: Apache-2.0
"""Limits and sizes of the wire format on which clients and servers must agree.

This module holds only numbers. Every bound is inclusive unless its comment says otherwise. The names give the units.
"""

from __future__ import annotations

HEADER_BYTES = 61
"""Size of the header of a record batch."""

MAGIC = 16
"""Batch format number of a protobuf column payload (`lograft.v1.Records`)."""

KAFKA_MAGIC = 2
"""Batch format number of Kafka's row payload: reserved, and refused."""

MAX_RECORDS_PER_BATCH = 100_000
"""Most records in one batch."""

MAX_BATCH_BYTES = 8 * 1024 * 1024
"""Largest batch with its header. No topic config may exceed it."""

DEFAULT_MAX_MESSAGE_BYTES = 1024 * 1024
"""Default of the topic config `max.message.bytes`: largest batch with its header."""

MAX_INFLATED_BYTES = 64 * 1024 * 1024
"""Largest payload after decompression."""

MAX_GENERIC_PAYLOAD_BYTES = 8 * 1024 * 1024
"""Largest decompressed payload that has record headers, or fields in an unusual order.

Such payloads go through the generated parser, which may take twenty times their size in memory.
"""

MAX_ZSTD_WINDOW_BYTES = 8 * 1024 * 1024
"""Largest window of a zstd frame without a content size (RFC 8878 section 3.1.1.1.2 recommends support up to 8 MB)."""

MAX_ZSTD_LEVEL = 19
"""Highest zstd level, inclusive. Higher levels use windows over `MAX_ZSTD_WINDOW_BYTES`."""

MAX_TIMESTAMP_MS = 253_402_300_799_999
"""Largest timestamp of a record: the last millisecond of the year 9999. The smallest is 0 (1970-01-01 UTC).

The datetime types of Python, Spark and Arrow fail beyond it, so such a record could be stored but not read back.
"""

MAX_OFFSET = 2**63 - 2
"""Largest offset of a record. The next offset then still fits into int64."""

MAX_GRPC_MESSAGE_BYTES = 16 * 1024 * 1024
"""Largest gRPC message, both ways, on every channel and server."""

MAX_ROUTE = 1_048_575
"""Largest route number on a produce or fetch stream; the smallest is 0."""

MAX_IN_FLIGHT_BATCHES = 16
"""Most unacknowledged batches of one route."""

DEDUP_WINDOW_BATCHES = 16
"""Batches of each producer that the leader of a partition remembers: as many as may be in flight."""

STAGING_PRODUCER_ID_MIN = 2**61
"""First producer id of the attempts of ingests; they end below `PUBLISHING_PRODUCER_ID_MIN`. Smaller ids are those of producers."""

PUBLISHING_PRODUCER_ID_MIN = 2**62
"""First producer id with which partition leaders publish ingests: one for each partition of `__ingests`, and none for clients."""

DEFAULT_MAX_CHUNK_BYTES = 1024 * 1024
"""Default limit of one fetch chunk. The broker still sends a single larger batch."""

MAX_STATUS_METADATA_BYTES = 8_192
"""Largest trailers of a failed call as HTTP/2 counts them. gRPC peers refuse larger ones, some only sometimes."""

MAX_STATUS_MESSAGE_BYTES = 1_000
"""Most bytes of UTF-8 in a status message. Longer messages are cut.

On the wire the text takes up to 3 times as many bytes, and the copy inside the details up to 4/3 times.
"""

MAX_STATUS_DETAIL_BYTES = 2_000
"""Most bytes of packed status details. With the message they stay within `MAX_STATUS_METADATA_BYTES`, even in base64."""

BATCH_OVERHEAD_BYTES = HEADER_BYTES + 14 * 6
"""Most bytes of an uncompressed batch besides its records: the header, and tag and length of every field."""

RECORD_OVERHEAD_BYTES = 4 + 4 + 5 + 5 + 10 + 5 + 5
"""Most bytes of a record besides key, value and headers.

They hold two lengths, two null indexes, a timestamp, an offset and a header count.
"""

RECORD_HEADER_OVERHEAD_BYTES = 6 + 6 + 5
"""Most bytes of a record header besides its key and value: two tags with lengths, and a null index."""
