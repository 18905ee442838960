# SPDX-License-Identifier: Apache-2.0
"""A controller core with a log in memory, without a quorum: it does what the shell does, for tests of the core."""

from __future__ import annotations

from dataclasses import replace

from metaquorum.controller.commands import (
    BrokerRegistered,
    Command,
    CreateTopic,
    Decision,
    Heartbeat,
    Refusal,
    RegisterBroker,
)
from metaquorum.controller.controller import Controller
from metaquorum.controller.settings import ControllerSettings
from metaquorum.metadata import image_rows, record_codec
from metaquorum.metadata.image import MetadataImage, PartitionImage
from metaquorum.metadata.records import (
    ConfigRecord,
    ConfigResource,
    MetadataRecord,
    NoOpRecord,
    PartitionRecord,
    TopicRecord,
)

SETTINGS = ControllerSettings()


def incarnation(number: int) -> bytes:
    """Return a recognisable 16-byte id."""
    return number.to_bytes(16, "big")


def register(broker_id: int, /, *, process: int | None = None, **changes: object) -> RegisterBroker:
    """Return a registration of a broker by a process; the process has the broker's number by default."""
    command = RegisterBroker(
        broker_id=broker_id,
        incarnation_id=incarnation(broker_id if process is None else process),
        host=f"broker-{broker_id}",
        port=9640,
        rack="r1",
        log_directory_ids=(incarnation(900 + broker_id),),
    )
    return replace(command, **changes)


def create_topic(topic: str, /, *, partition_count: int = 1, **changes: object) -> CreateTopic:
    """Return a creation with an id that is derived from the name."""
    command = CreateTopic(
        topic=topic, topic_id=topic_id(topic), partition_count=partition_count, replication_factor=1, configs={}
    )
    return replace(command, **changes)


def topic_id(topic: str) -> bytes:
    """Return the id that `create_topic` gives."""
    return topic.encode().rjust(16, b"\x00")[-16:]


class World:
    """A log, a committed image and the controller of one leadership over it.

    Args:
        settings: times and limits.
        first_offset: offset of the first record; the ones below belong to the quorum.
    """

    def __init__(self, *, settings: ControllerSettings = SETTINGS, first_offset: int = 2) -> None:
        self.settings = settings
        self.now_ms = 10_000
        self.log: list[tuple[int, MetadataRecord]] = []
        self.log_end_offset = first_offset
        self.image = MetadataImage()
        self.image.advance(first_offset)
        self.controller = self.take_over()

    def take_over(self) -> Controller:
        """Start a new leadership: records that were appended and not committed are lost."""
        self.log = [entry for entry in self.log if entry[0] < self.image.metadata_offset]
        self.log_end_offset = self.image.metadata_offset
        self.controller = Controller(self.image, settings=self.settings, now_ms=self.now_ms)
        return self.controller

    def limit(self, **limits: int) -> None:
        """Start a new leadership with other limits; commit every record first."""
        self.commit()
        self.settings = replace(self.settings, **limits)
        self.take_over()

    def decide(self, command: Command) -> Decision:
        """Decide only."""
        return self.controller.decide(command, self.now_ms)

    def append(self, command: Command) -> Decision:
        """Decide and append, as the shell does; commit nothing."""
        decision = self.decide(command)
        if decision.heard is not None:
            self.controller.hear(decision.heard, self.now_ms)
        for record in decision.records:
            # Through bytes, so that every test also uses the codec.
            record = record_codec.decode(record_codec.encode(record))
            self.controller.replay(record, self.log_end_offset)
            self.log.append((self.log_end_offset, record))
            self.log_end_offset += 1
        return decision

    def commit(self) -> None:
        """Commit everything that is appended."""
        for offset, record in self.log:
            if offset >= self.image.metadata_offset:
                self.image.replay(record, offset)
        self.image.advance(self.log_end_offset)
        self.controller.committed(self.log_end_offset)

    def run(self, command: Command) -> Decision:
        """Append and commit a command and its follow-up commands; return its decision."""
        first = decision = self.append(command)
        self.commit()
        while decision.then is not None:
            decision = self.append(decision.then)
            self.commit()
        return first

    def refusal(self, command: Command) -> Refusal:
        """Return the refusal of a command that must be refused and have no records."""
        decision = self.decide(command)
        assert isinstance(decision.response, Refusal), decision
        assert decision.records == ()
        assert decision.then is None
        return decision.response

    def pass_over(self, count: int = 1) -> None:
        """Append and commit records that change nothing, to raise the offsets."""
        for _ in range(count):
            self.controller.replay(NoOpRecord(), self.log_end_offset)
            self.log.append((self.log_end_offset, NoOpRecord()))
            self.log_end_offset += 1
        self.commit()

    def write(self, *records: MetadataRecord) -> None:
        """Append and commit records that no command gives, such as topics with several replicas."""
        for record in records:
            record = record_codec.decode(record_codec.encode(record))
            self.controller.replay(record, self.log_end_offset)
            self.log.append((self.log_end_offset, record))
            self.log_end_offset += 1
        self.commit()

    def write_topic(
        self, topic: str, replicas: tuple[int, ...], *, partition_count: int = 1, configs: dict[str, str] | None = None
    ) -> None:
        """Write a topic whose partitions all have these replicas, in sync and led by the first."""
        self.write(
            TopicRecord(topic=topic, topic_id=topic_id(topic)),
            *(
                ConfigRecord(resource=ConfigResource.TOPIC, resource_name=topic_id(topic).hex(), name=name, value=value)
                for name, value in (configs or {}).items()
            ),
            *(
                PartitionRecord(
                    topic_id=topic_id(topic),
                    partition=partition,
                    replicas=replicas,
                    isr=replicas,
                    leader_id=replicas[0],
                    leader_epoch=0,
                    partition_epoch=0,
                )
                for partition in range(partition_count)
            ),
        )

    def partition(self, topic: str, partition: int = 0) -> PartitionImage:
        """Return a committed partition."""
        found = self.image.topic_by_name(topic)
        assert found is not None
        return found.partitions[partition]

    def epoch(self, broker_id: int) -> int:
        """Return the epoch of a registered broker."""
        broker = self.controller.image.broker(broker_id)
        assert broker is not None
        return broker.broker_epoch

    def beat(self, broker_id: int, *, metadata_offset: int | None = None, **wishes: bool) -> Decision:
        """Run a heartbeat of a broker, which is caught up by default."""
        offset = self.log_end_offset if metadata_offset is None else metadata_offset
        return self.run(
            Heartbeat(broker_id=broker_id, broker_epoch=self.epoch(broker_id), metadata_offset=offset, **wishes)
        )

    def start_broker(self, broker_id: int, *, process: int | None = None) -> int:
        """Register and unfence a broker; return its epoch."""
        decision = self.run(register(broker_id, process=process))
        assert isinstance(decision.response, BrokerRegistered), decision
        self.beat(broker_id)
        assert not self.image.brokers[broker_id].fenced
        return self.epoch(broker_id)

    def leaders(self, topic: str) -> list[int | None]:
        """Return the committed leaders of a topic's partitions."""
        found = self.image.topic_by_name(topic)
        assert found is not None
        return [partition.leader_id for partition in found.partitions]


def view(image: MetadataImage) -> list[tuple[bytes, image_rows.Row]]:
    """Return the whole contents of an image in a comparable form."""
    return list(image_rows.all_rows(image))
