# SPDX-License-Identifier: Apache-2.0
"""Mutants of the partition core: deliberate mistakes that the model must find. Otherwise it proves nothing.

Mutants that need several faults at once name seeds around one that is known to find them, so that the test stays short.

Owns the list. `metaquorum.testing.mutants` defines mutants and installs the mistake.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from brokerd.partition.follower import Following
from brokerd.partition.isr_state import IsrState
from brokerd.partition.leader import Leadership
from brokerd.partition.progress import FollowerProgress
from brokerd.partition.roles import Roles
from metaquorum.metadata.topic_configs import FlushPolicy
from metaquorum.testing.mutants import Mutant


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationMutant(Mutant):
    """A mistake, the flush policy under which it is hunted, and the seeds that are tried until one finds it."""

    policy: FlushPolicy = FlushPolicy.ACK
    seeds: Sequence[int] = range(12)


MUTANTS: Final = (
    ReplicationMutant(
        name="an acknowledgement of an older subscription counts",
        owner=Leadership,
        function="acknowledge",
        old="or not follower.is_of(event) or not follower.is_subscribed",
        new="",
        policy=FlushPolicy.NONE,
        seeds=range(22, 24),
    ),
    ReplicationMutant(
        name="a proposal does not say which process it means",
        owner=Leadership,
        function="propose",
        old="broker_epoch=self.broker_epoch_of(node_id)",
        new="broker_epoch=None",
        policy=FlushPolicy.NONE,
        seeds=range(1340, 1342),
    ),
    ReplicationMutant(
        name="a process with an old broker epoch may subscribe",
        owner=Leadership,
        function="_fence",
        old="if event.broker_epoch < registered.broker_epoch:",
        new="if False:",
    ),
    ReplicationMutant(
        name="the high watermark advances below min ISR",
        owner=Leadership,
        function="committed_end",
        old="if self.isr.is_below_min:",
        new="if False:",
    ),
    ReplicationMutant(
        name="what a follower has appended counts as flushed",
        owner=FollowerProgress,
        function="counted_offset",
        old="self.flushed_offset if is_flush_counted else self.appended_offset",
        new="self.appended_offset",
    ),
    ReplicationMutant(
        name="a follower acknowledges before its flush",
        owner=Following,
        function="report",
        old="if is_more_appended or log.flushed_offset > flushed_offset:",
        new="if log.log_end_offset > appended_offset:\n        log.flushed_offset = log.log_end_offset",
    ),
    ReplicationMutant(
        name="a follower joins before it holds what is committed",
        owner=Leadership,
        function="_may_join",
        old="counted < max(self._log.high_watermark, self.epoch_start_offset)",
        new="counted < 0",
    ),
    ReplicationMutant(
        name="a log that diverges is accepted",
        owner=Leadership,
        function="subscribe",
        old="    parting = compared(",
        new="    parting = None\n    compared(",
    ),
    ReplicationMutant(
        name="a follower takes batches of an earlier subscription",
        owner=Following,
        function="_is_present",
        old="session == self.session_count and ",
        new="",
        policy=FlushPolicy.NONE,
        seeds=range(198, 202),
    ),
    ReplicationMutant(
        name="proposed members do not count",
        owner=IsrState,
        function="_count_maximal",
        old=" or node_id in proposed",
        new="",
        policy=FlushPolicy.NONE,
        seeds=range(17, 20),
    ),
    ReplicationMutant(
        name="members of an unanswered proposal do not count",
        owner=IsrState,
        function="_count_maximal",
        old=" or node_id in self._open_members",
        new="",
        policy=FlushPolicy.NONE,
    ),
    ReplicationMutant(
        name="a receipt says flushed when the leader alone has flushed",
        owner=Roles,
        function="flushed_end",
        old="if self.leadership is None:",
        new="if True:",
        policy=FlushPolicy.NONE,
        seeds=range(12, 14),
    ),
    ReplicationMutant(
        name="a replica keeps an epoch without records when it follows",
        owner=Roles,
        function="change",
        old="ForgetEmptyEpoch(), ",
        new="",
    ),
)
