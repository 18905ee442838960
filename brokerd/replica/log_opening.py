# SPDX-License-Identifier: Apache-2.0
"""Opens the logs of this broker's partitions where they are, and makes new ones where there is space.

Runs in threads. Owns the budget of open files. Does not know who leads, and keeps no log.
"""

from __future__ import annotations

import logging

from brokerd.clock import monotonic_ms, wall_ms
from brokerd.limits import MAX_OPEN_LOG_FILES
from brokerd.replica.replica import log_settings
from metaquorum.metadata.topic_configs import TopicSettings
from storage.directory.directories import LogDirectories, LogDirectory
from storage.errors import DiskFailedError
from storage.files.descriptor_cache import FileBudget
from storage.files.names import PartitionIdentity, partition_directory_name
from storage.log.partition_log import OpenedLog, PartitionLog

logger = logging.getLogger(__name__)


class LogOpening:
    """Opens the logs of one broker."""

    def __init__(self, directories: LogDirectories) -> None:
        self._directories = directories
        self._files = FileBudget(MAX_OPEN_LOG_FILES)

    def open(self, topic: str, identity: PartitionIdentity, settings: TopicSettings) -> tuple[LogDirectory, OpenedLog]:
        """Open a log in its directory, or make a new one where there is space.

        Raises:
            DiskFailedError: its log directory has failed, now or before.
            StorageError: it cannot be opened.
        """
        name = partition_directory_name(identity)
        directory = self._directories.place(name, now_ms=monotonic_ms())
        if directory.failure is not None:
            raise DiskFailedError(directory.path, f"the log directory failed before: {directory.failure}")
        opened = self.open_at(identity, directory, f"{directory.partitions_path}/{name}", settings)
        logger.info(
            "log open: partition=%s-%d log_start_offset=%d log_end_offset=%d report=%s",
            topic,
            identity.partition,
            opened.log.log_start_offset,
            opened.log.log_end_offset,
            opened.report,
        )
        return directory, opened

    def open_at(
        self, identity: PartitionIdentity, directory: LogDirectory, path: str, settings: TopicSettings
    ) -> OpenedLog:
        """Open the log at a path of a log directory; raises the errors of `open`."""
        return PartitionLog.open(
            directory.disk,
            path,
            settings=log_settings(settings),
            now_ms=wall_ms(),
            identity=identity,
            files=self._files,
        )
