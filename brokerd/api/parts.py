# SPDX-License-Identifier: Apache-2.0
"""The parts of one broker that its services share."""

from __future__ import annotations

from dataclasses import dataclass

from brokerd.api.log_service.batch_check import BatchThreads
from brokerd.api.log_service.fetch_buffer import FetchBuffer
from brokerd.controller_client.lifecycle import ControllerSession
from brokerd.controller_client.producer_ids import ProducerIds
from brokerd.publishing.quota import StagingQuota
from brokerd.replica.locator import Locator
from brokerd.stream_register import StreamRegister
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.net.peers import Peers


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerParts:
    """The parts of one broker that its services use."""

    cluster_id: str
    node_id: int
    observer: MetadataLoader
    locator: Locator
    peers: Peers
    producer_ids: ProducerIds
    produce_streams: StreamRegister
    fetch_streams: StreamRegister
    watch_streams: StreamRegister
    group_streams: StreamRegister
    fetch_buffer: FetchBuffer
    batch_threads: BatchThreads
    session: ControllerSession
    staging_quota: StagingQuota
