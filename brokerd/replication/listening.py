# SPDX-License-Identifier: Apache-2.0
"""What a hosted replica calls, and how storage errors and settings look from outside. Types and translation only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from brokerd.failure import Failure
from brokerd.partition.events import Durability
from metaquorum.controller.topic_configs import TopicSettings
from storage.errors import StorageError
from storage.log import LogSettings

AckCallback = Callable[[Durability | None], None]
"""Called once with what was reached, or with None when nobody will ever know."""


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


def log_settings(settings: TopicSettings) -> LogSettings:
    """Return what the log engine needs of a topic's configs."""
    return LogSettings(
        segment_bytes=settings.segment_bytes,
        segment_ms=settings.segment_ms,
        index_interval_bytes=settings.index_interval_bytes,
    )


def client_text(error: StorageError) -> str:
    """Cut paths of this machine off the text; the log line keeps them."""
    text = str(error)
    return text.rsplit(": ", 1)[-1] if text.startswith("/") else text
