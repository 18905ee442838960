# SPDX-License-Identifier: Apache-2.0
"""What a process may conclude from the metadata: it leads nothing before it is registered itself and unfenced."""

from __future__ import annotations

import pytest

from brokerd.replica.metadata_view import OwnBroker
from metaquorum.metadata.image import MetadataImage, PartitionImage
from metaquorum.metadata.records import BrokerChangeRecord, BrokerRecord, RemoveBrokerRecord

OWN, BEFORE = b"p" * 16, b"b" * 16
LED = PartitionImage(partition=0, replicas=(1, 2), isr=(1, 2), leader_id=1, leader_epoch=4, partition_epoch=9)


def registration(incarnation_id: bytes, broker_epoch: int, *, fenced: bool) -> BrokerRecord:
    """Broker 1, as one of its processes."""
    return BrokerRecord(
        broker_id=1,
        incarnation_id=incarnation_id,
        broker_epoch=broker_epoch,
        host="h",
        port=1,
        rack=None,
        fenced=fenced,
    )


class Shown:
    """A process, and the images that it is shown."""

    def __init__(self) -> None:
        self.own = OwnBroker(1, OWN)
        self.image = MetadataImage()
        self.offset = 0

    def show(self, *records: BrokerRecord | BrokerChangeRecord | RemoveBrokerRecord) -> bool:
        """Apply records to the image, and look at it."""
        for record in records:
            self.image.replay(record, self.offset)
            self.offset += 1
        return self.own.look(self.image)


@pytest.mark.parametrize("fenced", [True, False])
def test_what_the_process_before_led_is_not_led(fenced: bool) -> None:
    """The image has the registration of the previous process, whose leaderships do not count for this one."""
    shown = Shown()
    assert not shown.show()
    assert not shown.show(registration(BEFORE, 3, fenced=fenced))
    assert not shown.own.may_lead
    seen = shown.own.seen(LED)
    assert (seen.leader_id, seen.leader_epoch, seen.partition_epoch) == (None, 4, 9)


def test_process_leads_from_the_image_on_that_has_it_unfenced() -> None:
    """While only registered it leads nothing. Once unfenced it leads, and hears of that once."""
    shown = Shown()
    assert not shown.show(registration(OWN, 3, fenced=True))
    assert shown.own.seen(LED).leader_id is None
    assert shown.show(BrokerChangeRecord(broker_id=1, broker_epoch=3, fenced=False))
    assert shown.own.seen(LED) is LED
    assert not shown.show()


def test_fence_takes_no_leadership_back() -> None:
    """The process was unfenced before. The partitions say who leads now, in a higher epoch."""
    shown = Shown()
    assert shown.show(registration(OWN, 3, fenced=False))
    assert not shown.show(BrokerChangeRecord(broker_id=1, broker_epoch=3, fenced=True))
    assert shown.own.seen(LED) is LED


@pytest.mark.parametrize(
    "record", [registration(BEFORE, 8, fenced=False), RemoveBrokerRecord(broker_id=1, broker_epoch=3)]
)
def test_another_process_with_the_same_id_ends_it(record: BrokerRecord | RemoveBrokerRecord) -> None:
    """What the metadata assigns to another incarnation, or to none, does not belong to this process."""
    shown = Shown()
    assert shown.show(registration(OWN, 3, fenced=False))
    assert not shown.show(record)
    assert shown.own.seen(LED).leader_id is None


def test_what_others_lead_is_seen_as_it_is() -> None:
    """A process that may not lead may follow."""
    led_by_other = PartitionImage(
        partition=0, replicas=(1, 2), isr=(1, 2), leader_id=2, leader_epoch=4, partition_epoch=9
    )
    assert Shown().own.seen(led_by_other) is led_by_other
