# SPDX-License-Identifier: Apache-2.0
"""What a batch must be to go into a compacted topic: every record has a key. Pure.

The broker calls this for batches of a topic with `cleanup.policy=compact`, after `check_batch`. A record without a key could
never be replaced, so it would stay for ever.
Source: docs/storage.md section 6; Kafka, LogValidator (`testCompactedTopicConstraints`).
"""

from __future__ import annotations

from lograft.wire.columns import Payload

MAX_REPORTED_RECORDS = 100
"""Most indexes of records without a key in one answer; the first ones are reported."""


def records_without_key(payload: Payload) -> list[int]:
    """Return the indexes of the records that have no key, ascending, at most `MAX_REPORTED_RECORDS`; empty: all is well.

    An empty key is a key. Costs nothing for a batch in which every record has one.
    """
    if payload.keys is None:
        return list(range(min(payload.record_count, MAX_REPORTED_RECORDS)))
    return payload.keys.nulls[:MAX_REPORTED_RECORDS]
