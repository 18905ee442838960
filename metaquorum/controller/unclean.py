# SPDX-License-Identifier: Apache-2.0
"""Leaders for partitions without one, where lacking records is allowed, at intervals.

Owns which partitions are looked at; who is elected, `elections.partition_change` says. Every change after which a partition could
get a leader starts a sweep, which elects at once; this is the net below it. Law: a partition that has a leader keeps it, and one
whose topic does not allow an unclean leader is left to clean elections.
Source: Kafka 4's ReplicationControlManager (maybeElectUncleanLeaders); KIP-966; `docs/controller.md` section "Elections by
themselves".
"""

from __future__ import annotations

from functools import cache

from metaquorum.controller.appended import AppendedImage
from metaquorum.controller.commands import Decision, Done
from metaquorum.controller.elections import Choose, ElectionRules, partition_change, rules_of
from metaquorum.controller.walk_commands import ElectUncleanLeaders
from metaquorum.controller.walks import walk
from metaquorum.metadata.records import PartitionChangeRecord
from metaquorum.metadata.state import TopicImage, example


def elect_unclean(image: AppendedImage, command: ElectUncleanLeaders) -> Decision:
    """Decide one slice; `then` of the decision is the next one, or None. It ends early when every partition has a leader."""
    if not image.counts.leaderless:
        return Decision(response=Done())
    fit = {broker.broker_id for broker in image.brokers() if broker.can_lead}

    @cache
    def needed(rules: ElectionRules) -> Choose:
        @cache
        def choose(members: bytes) -> PartitionChangeRecord | None:
            partition = example(members)
            if partition.leader_id is not None:
                return None
            # A replica that has everything comes before any other. Brokers that may have lost records are fenced.
            return partition_change(b"", partition, fit.__contains__, rules=rules)

        return choose

    def choose_in(topic: TopicImage) -> Choose | None:
        rules = rules_of(image, topic)
        return needed(rules) if rules.unclean else None

    records, cursor = walk(image, command.cursor, choose_in)
    then = None if cursor is None else ElectUncleanLeaders(cursor=cursor)
    return Decision(response=Done(), records=tuple(records), then=then)
