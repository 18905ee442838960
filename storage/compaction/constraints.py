# SPDX-License-Identifier: Apache-2.0
"""The rule for batches of a compacted topic: every record has a key. Pure.

The broker calls this for topics with `cleanup.policy=compact`, after `check_batch`. Nothing could replace a record
without a key, so it would stay for ever.
Source: docs/storage.md section 6; Kafka, LogValidator (`testCompactedTopicConstraints`).
"""

from __future__ import annotations

from lograft.wire.columns import Payload

MAX_REPORTED_RECORDS = 100
"""Most records without a key that one answer lists; it lists the first ones."""


def records_without_key(payload: Payload) -> list[int]:
    """Return the indexes of records without a key, ascending, at most `MAX_REPORTED_RECORDS`; empty if all records have one.

    An empty key is a key. The check costs nothing if every record of the batch has a key.
    """
    if payload.keys is None:
        return list(range(min(payload.record_count, MAX_REPORTED_RECORDS)))
    return payload.keys.nulls[:MAX_REPORTED_RECORDS]
