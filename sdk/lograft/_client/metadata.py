# SPDX-License-Identifier: Apache-2.0
"""What a client knows about the cluster: brokers, topics, leaders.

It merges whole states, deltas and hints from several brokers in any order. It must not send requests.
Laws: the leader epoch of a partition never goes back while the topic keeps its id. An older state neither removes a topic nor
replaces one that was recreated.
Source: proto/lograft/v1/metadata.proto and errors.proto (clients ignore a lower leader epoch).
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerNode:
    """A broker and the address that clients use."""

    broker_id: int
    host: str
    port: int
    rack: str | None = None
    fenced: bool = False

    @property
    def address(self) -> str:
        """host:port, with brackets around an IPv6 address."""
        host = f"[{self.host}]" if ":" in self.host and not self.host.startswith("[") else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """A partition. `leader_id` is None without a leader; `awaited` lists (broker id, directory ids) of the awaited replicas."""

    partition: int
    leader_id: int | None
    leader_epoch: int
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()
    awaited: tuple[tuple[int, tuple[bytes, ...]], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicState:
    """A topic. Its partitions are in order, from 0."""

    topic: str
    topic_id: bytes
    partitions: tuple[PartitionState, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """A whole state or a change, as a broker sent it.

    Attributes:
        metadata_offset: metadata offset of the state, exclusive.
        cluster_id: id of the cluster.
        controller_id: id of the active controller; None: not known.
        brokers: existing brokers; in a change, only new and changed ones.
        topics: existing topics; in a change, only new and changed ones.
        removed_broker_ids: ids of brokers that no longer exist.
        removed_topics: names of topics that no longer exist.
        has_all_brokers: True when brokers that are not in `brokers` no longer exist.
        covered_topics: names of topics that no longer exist unless they are in `topics`.
    """

    metadata_offset: int
    cluster_id: str
    controller_id: int | None = None
    brokers: tuple[BrokerNode, ...] = ()
    topics: tuple[TopicState, ...] = ()
    removed_broker_ids: tuple[int, ...] = ()
    removed_topics: tuple[str, ...] = ()
    has_all_brokers: bool = False
    covered_topics: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Leader:
    """The leader of a partition, with its address."""

    broker_id: int
    address: str
    leader_epoch: int


class ClusterView:
    """The merged state of the cluster, as one client knows it."""

    __slots__ = ("_brokers", "_topic_offsets", "_topics", "cluster_id", "controller_id", "metadata_offset")

    def __init__(self) -> None:
        self.cluster_id: str | None = None
        self.controller_id: int | None = None
        self.metadata_offset = 0
        self._brokers: dict[int, BrokerNode] = {}
        self._topics: dict[str, TopicState] = {}
        # Metadata offset of the newest state that contained each topic.
        self._topic_offsets: dict[str, int] = {}

    def brokers(self) -> list[BrokerNode]:
        """Return the brokers, ordered by id."""
        return [self._brokers[broker_id] for broker_id in sorted(self._brokers)]

    def broker(self, broker_id: int) -> BrokerNode | None:
        """Return a broker; None if the client does not know it."""
        return self._brokers.get(broker_id)

    def in_sync(self, topic: str, partition: int) -> tuple[int, ...]:
        """Return the ids of the in-sync replicas of a partition; empty if the client does not know it."""
        state = self._topics.get(topic)
        return state.partitions[partition].isr if state is not None and partition < len(state.partitions) else ()

    def topic(self, topic: str) -> TopicState | None:
        """Return a topic; None if the client does not know it."""
        return self._topics.get(topic)

    def leader(self, topic: str, partition: int) -> Leader | None:
        """Return the leader of a partition; None without a leader, or if its broker is not known."""
        state = self._topics.get(topic)
        if state is None or not 0 <= partition < len(state.partitions):
            return None
        part = state.partitions[partition]
        broker = None if part.leader_id is None else self._brokers.get(part.leader_id)
        if broker is None:
            return None
        return Leader(broker_id=broker.broker_id, address=broker.address, leader_epoch=part.leader_epoch)

    def apply(self, update: ClusterState) -> None:
        """Merge a state or a change."""
        is_current = update.metadata_offset >= self.metadata_offset
        self.cluster_id = update.cluster_id
        for broker in update.brokers:
            if is_current or broker.broker_id not in self._brokers:
                self._brokers[broker.broker_id] = broker
        if is_current:
            self._remove_brokers(update)
            self.controller_id = update.controller_id
            self.metadata_offset = update.metadata_offset
        for topic in update.topics:
            self._merge_topic(topic, update.metadata_offset)
        present = {topic.topic for topic in update.topics}
        for name in (*sorted(update.covered_topics - present), *update.removed_topics):
            if update.metadata_offset >= self._topic_offsets.get(name, 0):
                self._topics.pop(name, None)
                self._topic_offsets.pop(name, None)

    def _remove_brokers(self, update: ClusterState) -> None:
        if update.has_all_brokers:
            present = {broker.broker_id for broker in update.brokers}
            self._brokers = {key: broker for key, broker in self._brokers.items() if key in present}
        for broker_id in update.removed_broker_ids:
            self._brokers.pop(broker_id, None)

    def _merge_topic(self, new: TopicState, metadata_offset: int) -> None:
        old = self._topics.get(new.topic)
        known_offset = self._topic_offsets.get(new.topic, 0)
        if old is not None and old.topic_id == new.topic_id:
            self._topics[new.topic] = _merge_partitions(old, new)
        elif metadata_offset >= known_offset:
            self._topics[new.topic] = new
        else:
            return
        self._topic_offsets[new.topic] = max(metadata_offset, known_offset)

    def take_hint(self, topic: str, partition: int, *, leader_id: int, leader_epoch: int, host: str, port: int) -> bool:
        """Take a leader hint from a broker that refused a request.

        Returns:
            False if the hint is not newer than the view. It then changes nothing.
        """
        state = self._topics.get(topic)
        if state is None or not 0 <= partition < len(state.partitions):
            return False
        part = state.partitions[partition]
        is_newer = leader_epoch > part.leader_epoch or (leader_epoch == part.leader_epoch and part.leader_id is None)
        if not is_newer:
            return False
        parts = list(state.partitions)
        parts[partition] = replace(part, leader_id=leader_id, leader_epoch=leader_epoch)
        self._topics[topic] = replace(state, partitions=tuple(parts))
        if host and port:
            known = self._brokers.get(leader_id)
            node = BrokerNode(broker_id=leader_id, host=host, port=port)
            self._brokers[leader_id] = node if known is None else replace(known, host=host, port=port)
        return True


def _merge_partitions(old: TopicState, new: TopicState) -> TopicState:
    """Take each partition from the state with the higher leader epoch. Partitions are never removed."""
    merged = list(new.partitions)
    for part in old.partitions:
        if part.partition >= len(merged):
            merged.append(part)
        elif part.leader_epoch > merged[part.partition].leader_epoch:
            merged[part.partition] = part
    return replace(new, partitions=tuple(merged))
