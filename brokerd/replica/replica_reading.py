# SPDX-License-Identifier: Apache-2.0
"""The read side of one hosted replica: which offsets it has, and the batches between them.

Must not decide what is readable: the core does.
"""

from __future__ import annotations

import logging

from brokerd.failure import Failure, ReadableOffsets, RefusedError
from brokerd.partition.replica import PartitionReplica
from brokerd.replica.listening import client_text
from brokerd.replica.refusals import range_failure, repairing_failure
from storage.errors import DataLossError, OffsetOutOfRangeError, StorageError
from storage.log.partition_log import PartitionLog
from storage.types import LogRead, TimestampAndOffset

logger = logging.getLogger(__name__)


class ReplicaReading:
    """See the module docstring.

    Args:
        core: the core.
        log: the open log; replaced when it goes on in another directory.

    Attributes:
        topic: topic name.
        partition: partition, from 0.
    """

    topic: str
    partition: int

    def __init__(self, core: PartitionReplica, log: PartitionLog) -> None:
        self._core = core
        self._log = log

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def is_end_known(self) -> bool:
        """False for a new leader that cannot tell yet what an earlier one had committed."""
        return self._core.is_end_known

    @property
    def log_start_offset(self) -> int:
        """First readable offset (inclusive)."""
        return self._log.log_start_offset

    @property
    def log_end_offset(self) -> int:
        """Offset that the next record will get."""
        return self._log.log_end_offset

    @property
    def high_watermark(self) -> int:
        """End (exclusive) of the readable records."""
        return self._core.high_watermark

    @property
    def followed_end(self) -> int | None:
        """End (exclusive) of what readers may have of this replica as a follower; None: it serves nobody as one."""
        return self._core.followed_end

    @property
    def readable_range(self) -> ReadableOffsets:
        """The offsets that can be read."""
        return ReadableOffsets(log_start_offset=self._log.log_start_offset, high_watermark=self._core.high_watermark)

    def read(self, offset: int, max_bytes: int, *, end_offset: int) -> LogRead:
        """Read whole batches from the one that holds `offset` on, below `end_offset` (exclusive); at least one.

        Raises:
            RefusedError: out of range, damaged (LEADER_NOT_AVAILABLE while another replica may take over), or the disk does not give
                the bytes.
        """
        try:
            return self._log.read(offset, max_bytes, end_offset=end_offset)
        except OffsetOutOfRangeError as error:
            raise RefusedError(self.out_of_range(offset)) from error
        except StorageError as error:
            logger.error("read failed: partition=%s offset=%d: %s", self, offset, error)
            if isinstance(error, DataLossError) and self._repairs(error):
                raise RefusedError(repairing_failure(str(self))) from error
            raise RefusedError(Failure(code=error.code, message=client_text(error))) from error

    def _repairs(self, _damage: DataLossError) -> bool:
        """Learn that a read met damage; tell whether another replica is about to serve the range."""
        return False

    def find_timestamp(self, timestamp_ms: int) -> TimestampAndOffset | None:
        """Find the first readable record with the timestamp or a later one.

        Raises:
            RefusedError: the log could not be read.
        """
        try:
            return self._log.find_timestamp(timestamp_ms, end_offset=self._core.high_watermark)
        except StorageError as error:
            logger.error("search by time failed: partition=%s timestamp_ms=%d: %s", self, timestamp_ms, error)
            raise RefusedError(Failure(code=error.code, message=client_text(error))) from error

    def out_of_range(self, offset: int) -> Failure:
        """Make the refusal of an offset that cannot be read."""
        return range_failure(offset, str(self), self.readable_range)
