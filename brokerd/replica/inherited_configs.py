# SPDX-License-Identifier: Apache-2.0
"""Applies what all topics of a broker go by to every open log, in slices: configs that they inherit, and leave to lead.

Owns the walk over all topics of a broker: a change of one config of the cluster may touch a hundred thousand logs, and
produce, fetch and heartbeats take their turn between slices. Must not know which value holds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Final

from metaquorum.metadata.image import TopicImage
from metaquorum.metadata.loader import MetadataLoader

SLICE_TOPICS: Final = 200
"""Topics looked at in one turn of the event loop; some 5 ms with a few partitions each."""


class InheritedConfigs:
    """See the module docstring. Belongs to one event loop.

    Args:
        observer: the metadata.
        topic_ids: the topics of this broker; a live view.
        reconcile: applies the metadata to the logs of one topic.
    """

    def __init__(
        self, observer: MetadataLoader, topic_ids: Collection[bytes], reconcile: Callable[[TopicImage], None]
    ) -> None:
        self._observer = observer
        self._topic_ids = topic_ids
        self._reconcile = reconcile
        self._is_running = False
        self._again = False

    def change(self) -> bool:
        """Note a change; True: the caller must run `apply`, False: the one that runs goes over all topics once more."""
        self._again = True
        is_first = not self._is_running
        self._is_running = True
        return is_first

    async def apply(self) -> None:
        """Go over all topics until nothing has changed meanwhile."""
        while self._again:
            self._again = False
            for position, topic_id in enumerate(tuple(self._topic_ids)):
                topic = self._observer.image.topic_by_id(topic_id)
                if topic is not None:
                    self._reconcile(topic)
                if (position + 1) % SLICE_TOPICS == 0:
                    await asyncio.sleep(0)
        self._is_running = False
