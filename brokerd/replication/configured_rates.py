# SPDX-License-Identifier: Apache-2.0
"""The rates at which a leader sends to its followers, from the configs of this broker or else of the cluster.

Does not know which follower gets what. A change needs no restart: a waiting stream checks again within `RATE_LOOK_MS`.
Source: docs/replication.md, "Rates".
"""

from __future__ import annotations

import logging

from brokerd.clock import monotonic_ms
from brokerd.partition.replication_rates import ReplicationRates
from metaquorum.controller.configs import value_for_broker
from metaquorum.metadata.changes import MetadataChange
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.metadata.topic_configs import CATCH_UP_RATE, MOVE_RATE

logger = logging.getLogger(__name__)


def configured_rates(observer: MetadataLoader, node_id: int) -> ReplicationRates:
    """Return the rates of a broker. They follow the metadata for as long as `observer` lives."""
    rates = ReplicationRates()

    def apply(_: MetadataChange | None) -> None:
        # Runs at every change. A new image does not say which configs differ, and this costs only two lookups.
        catch_up_limit = int(value_for_broker(observer.image, node_id, CATCH_UP_RATE))
        move_limit = int(value_for_broker(observer.image, node_id, MOVE_RATE))
        if rates.set_limits(catch_up_limit=catch_up_limit, move_limit=move_limit, now_ms=monotonic_ms()):
            logger.info("bytes a second: catch_up_limit=%d move_limit=%d", catch_up_limit, move_limit)

    apply(None)
    observer.on_change(apply)
    return rates
