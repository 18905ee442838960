# SPDX-License-Identifier: Apache-2.0
"""What a topic requires of records beyond the format: a key if it is compacted, and no timestamp far in the future.

Nothing could ever replace a record without a key. A record from the future would keep its segment, and everything
behind it, for longer than retention allows. The check looks at single records only if the batch as a whole breaks a
rule.
Source: Kafka, LogValidator; KIP-937.
"""

from __future__ import annotations

from typing import Final

from lograft.wire.checker import open_payload
from lograft.wire.codes import ErrorCode
from lograft.wire.header import BatchHeader
from lograft.wire.reader import RecordBatch

from brokerd.failure import refused
from metaquorum.metadata.topic_configs import TopicSettings
from storage.compaction.constraints import records_without_key

MAX_REPORTED_RECORDS: Final = 100
"""Most indexes of records in one answer; it lists the first ones."""


def check_records(
    batch: bytes | memoryview, header: BatchHeader, settings: TopicSettings, *, topic: str, now_ms: int
) -> None:
    """Check a batch that `check_batch` has accepted against the configs of its topic.

    Args:
        batch: the batch.
        header: its header.
        settings: configs of the topic.
        topic: name of the topic, for the answer.
        now_ms: wall clock in milliseconds.

    Raises:
        RefusedError: INVALID_BATCH, with the indexes of the wrong records.
    """
    latest_ms = now_ms + settings.timestamp_after_max_ms
    if header.max_timestamp_ms > latest_ms:
        late = [index for index, time_ms in enumerate(RecordBatch(batch).timestamps_ms()) if time_ms > latest_ms]
        raise refused(
            ErrorCode.INVALID_BATCH,
            f"topic {topic!r} takes timestamps up to {settings.timestamp_after_max_ms} ms from now "
            f"(message.timestamp.after.max.ms); later are those of the records {_list(late)} of the batch: "
            "nothing of it was appended",
        )
    if settings.cleanup_policy.compacts and (keyless := records_without_key(open_payload(batch, header))):
        raise refused(
            ErrorCode.INVALID_BATCH,
            f"topic {topic!r} is compacted, so every record needs a key; without one are the records "
            f"{_list(keyless)} of the batch: nothing of it was appended",
        )


def _list(indexes: list[int]) -> str:
    return ", ".join(map(str, indexes[:MAX_REPORTED_RECORDS])) or "(the header's largest timestamp)"
