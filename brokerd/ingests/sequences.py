# SPDX-License-Identifier: Apache-2.0
"""Numbers of ingests: sequences that wrap around, blocks of them, and the ranges of producer ids.

Pure functions. Sequences are those of Kafka: 31 bits, then 0 again. The older of two is found by its distance from a newer one, so all
that are compared must lie within `PARTITION_RECORDS_MAX` of each other.
"""

from __future__ import annotations

from typing import Final

SEQUENCE_MODULUS: Final = 2**31
"""Sequences are below it."""

BLOCK_PARTITIONS: Final = 64
"""Partitions whose publishing sequences share a record."""

FIRST_STAGING_PRODUCER_ID: Final = 2**61
"""First producer id of attempts."""

STAGING_PRODUCER_IDS: Final = 2**40
"""Staging producer ids of one partition of `__ingests`."""

FIRST_PUBLISHING_PRODUCER_ID: Final = 2**62
"""First producer id of published batches."""


def advanced(sequence: int, records: int) -> int:
    """Return the sequence after a number of records."""
    return (sequence + records) % SEQUENCE_MODULUS


def distance(older: int, newer: int) -> int:
    """Return how many records lie between two sequences."""
    return (newer - older) % SEQUENCE_MODULUS


def staging_producer_id(partition: int, number: int) -> int:
    """Return the producer id of an attempt: the one with this number, from 0, of a partition of `__ingests`."""
    return FIRST_STAGING_PRODUCER_ID + partition * STAGING_PRODUCER_IDS + number


def publishing_producer_id(partition: int) -> int:
    """Return the producer id of everything that a partition of `__ingests` publishes."""
    return FIRST_PUBLISHING_PRODUCER_ID + partition


def is_staging_producer_id(producer_id: int) -> bool:
    """Return True if a producer id is one of attempts."""
    return FIRST_STAGING_PRODUCER_ID <= producer_id < FIRST_PUBLISHING_PRODUCER_ID


def staging_partition(producer_id: int) -> int:
    """Return the partition of `__ingests` that gave a staging producer id."""
    return (producer_id - FIRST_STAGING_PRODUCER_ID) // STAGING_PRODUCER_IDS
