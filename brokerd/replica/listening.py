# SPDX-License-Identifier: Apache-2.0
"""What a hosted replica calls, and how storage errors and settings look from outside. Types and translation only."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final, Protocol

from brokerd.failure import Failure
from brokerd.partition.effects import LossReason
from brokerd.partition.events import Durability
from metaquorum.metadata.topic_configs import TopicSettings
from storage.errors import StorageError
from storage.types import LogSettings

SHARED_SETTINGS: Final = 1_024
"""Different settings that are remembered, so that idle logs share them."""

AckCallback = Callable[[Durability | LossReason], None]
"""Called once with what was reached, or with the reason why nobody knows what becomes of the records."""


class ServiceListener(Protocol):
    """Somebody who uses a replica: a produce route."""

    def on_service_end(self, failure: Failure) -> None:
        """Learn that the replica serves no more; the subscription is over."""
        ...


class ReadListener(ServiceListener, Protocol):
    """Somebody who reads a replica: a fetch route, a waiting read."""

    def on_high_watermark(self, high_watermark: int) -> None:
        """Learn that records below `high_watermark` (exclusive) are readable."""
        ...


@lru_cache(maxsize=SHARED_SETTINGS)
def log_settings(settings: TopicSettings) -> LogSettings:
    """Return what the log engine needs of a topic's configs; logs of equal configs share the object."""
    deletes = settings.cleanup_policy.deletes
    compacts = settings.cleanup_policy.compacts
    return LogSettings(
        segment_bytes=settings.segment_bytes,
        # Only sealed segments are compacted, so the active one must not outlive the longest lag.
        segment_ms=min(settings.segment_ms, settings.max_compaction_lag_ms) if compacts else settings.segment_ms,
        index_interval_bytes=settings.index_interval_bytes,
        retention_ms=settings.retention_ms if deletes else None,
        retention_bytes=settings.retention_bytes if deletes else None,
        file_delete_delay_ms=settings.file_delete_delay_ms,
        compact=compacts,
        min_compaction_lag_ms=settings.min_compaction_lag_ms,
        max_compaction_lag_ms=settings.max_compaction_lag_ms,
        min_cleanable_dirty_ratio=settings.min_cleanable_dirty_ratio,
        delete_retention_ms=settings.delete_retention_ms,
    )


def client_text(error: StorageError) -> str:
    """Cut paths of this machine off the text; the log line keeps them."""
    text = str(error)
    return text.rsplit(": ", 1)[-1] if text.startswith("/") else text
