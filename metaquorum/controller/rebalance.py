# SPDX-License-Identifier: Apache-2.0
"""The way back to preferred leaders, by itself.

Owns which partitions are led by another than their first replica though that one could lead. After a broker was away, others
lead its partitions and carry its load; nothing is wrong with them, so this is done now and then and not at once. Law: only a
leader that leads gives way, and only to a replica that has everything committed.
Source: Kafka 4's ReplicationControlManager (maybeBalancePartitionLeaders); `docs/controller.md` section "Elections by themselves".
"""

from __future__ import annotations

from functools import cache

from metaquorum.controller.appended import AppendedImage
from metaquorum.controller.commands import Decision, Done
from metaquorum.controller.elections import preferred_change
from metaquorum.controller.periodic import cluster_value
from metaquorum.controller.sessions import Sessions
from metaquorum.controller.walk_commands import ElectPreferredLeaders
from metaquorum.controller.walks import walk
from metaquorum.metadata.records import PartitionChangeRecord
from metaquorum.metadata.state import example
from metaquorum.metadata.topic_configs import LEADER_REBALANCE, TRUE


def elect_preferred(image: AppendedImage, sessions: Sessions, command: ElectPreferredLeaders) -> Decision:
    """Decide one slice; `then` of the decision is the next one, or None. Switched off, it ends at its next slice.

    A broker without room for appends gets nothing back: it would hand it over again.
    """
    if cluster_value(image, LEADER_REBALANCE) != TRUE:
        return Decision(response=Done())
    fit = {broker.broker_id for broker in image.brokers() if broker.can_lead and sessions.has_room(broker.broker_id)}

    @cache
    def choose(members: bytes) -> PartitionChangeRecord | None:
        return preferred_change(b"", example(members), fit.__contains__)

    records, cursor = walk(image, command.cursor, lambda _: choose)
    then = None if cursor is None else ElectPreferredLeaders(cursor=cursor)
    return Decision(response=Done(), records=tuple(records), then=then)
