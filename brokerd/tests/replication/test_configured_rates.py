# SPDX-License-Identifier: Apache-2.0
"""The rates of a leader follow the configs in the metadata of its broker."""

from __future__ import annotations

from brokerd.partition.replication_rates import ReplicationRates, Traffic
from brokerd.replication.configured_rates import configured_rates
from metaquorum.metadata import record_codec
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.image_format import LoadedImage
from metaquorum.metadata.listener import CommittedBatch
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.metadata.records import BrokerRecord, ConfigRecord, ConfigResource
from metaquorum.metadata.topic_configs import CATCH_UP_RATE, MOVE_RATE

HUGE = 1 << 40


def config(name: str, value: str | None, *, node_id: int | None = None) -> ConfigRecord:
    """Return the record that sets a config of a broker or of the cluster."""
    resource = ConfigResource.CLUSTER if node_id is None else ConfigResource.BROKER
    return ConfigRecord(
        resource=resource, resource_name="" if node_id is None else str(node_id), name=name, value=value
    )


def registration() -> BrokerRecord:
    """Return the record that registers broker 1."""
    return BrokerRecord(broker_id=1, incarnation_id=bytes(16), broker_epoch=0, host="h", port=1, rack=None, fenced=True)


def limits(rates: ReplicationRates) -> tuple[int, int]:
    """Return the maximum size of one message of catch-up and of a move."""
    return rates.message_bytes(Traffic.CATCH_UP, HUGE), rates.message_bytes(Traffic.MOVING, HUGE)


def commit(observer: MetadataLoader, *records: ConfigRecord) -> None:
    """Commit a batch of records."""
    offset = observer.metadata_offset
    observer.on_commit(
        CommittedBatch(
            base_offset=offset,
            next_offset=offset + len(records),
            quorum_epoch=1,
            append_timestamp_ms=0,
            records=[record_codec.encode(record) for record in records],
            is_control=False,
        )
    )


def test_limits_follow_committed_configs() -> None:
    """The first configs count, then each change. A broker's own value wins, and values of other brokers do not matter."""
    observer = MetadataLoader()
    commit(observer, config(CATCH_UP_RATE, "5000"))
    rates = configured_rates(observer, 1)
    assert limits(rates) == (5_000, 5_000)
    commit(observer, config(MOVE_RATE, "2000"), config(CATCH_UP_RATE, "3000", node_id=2))
    assert limits(rates) == (5_000, 2_000)
    commit(observer, config(CATCH_UP_RATE, "-1", node_id=1))
    assert limits(rates) == (HUGE, 2_000)
    commit(observer, config(CATCH_UP_RATE, None, node_id=1), config(MOVE_RATE, None))
    assert limits(rates) == (5_000, 5_000)


def test_limits_follow_an_image_that_takes_the_place_of_this_one() -> None:
    """A snapshot of the metadata does not say which configs changed."""
    observer = MetadataLoader()
    rates = configured_rates(observer, 1)
    assert limits(rates) == (HUGE, HUGE)
    image = MetadataImage()
    image.replay(registration(), 0)
    image.replay(config(CATCH_UP_RATE, "4000"), 1)
    observer.on_snapshot(LoadedImage(image=image, quorum_epoch=1))
    assert limits(rates) == (4_000, 4_000)
