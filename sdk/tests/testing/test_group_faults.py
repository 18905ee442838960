# SPDX-License-Identifier: Apache-2.0
"""A storm over a consumer group on three nodes, and the loss of the group's coordinator."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from lograft import Admin, Consumer
from lograft.testing import ProcessCluster, RebalanceStorm, storm_plan

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not hasattr(Consumer, "subscribe"), reason="this version has no consumer groups"),
]

WORKER = """
import signal, sys
from lograft import Consumer
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
with Consumer(sys.argv[1], group="billing") as consumer:
    consumer.subscribe(["orders"])
    while not asked:
        consumer.poll()
"""


def test_storm_and_lost_coordinator(tmp_path: Path) -> None:
    """Members come and go by the plan without an error, also while the coordinator is dead: another node coordinates."""
    with ProcessCluster() as cluster:
        with Admin(cluster.bootstrap) as admin:
            admin.create_topic("orders", partition_count=6, replication_factor=3)
        command = [sys.executable, "-c", WORKER, cluster.bootstrap]
        plan = storm_plan(5, step_count=6, member_count_max=3, pause_ms_max=1_000, stall_ms_max=500)
        with RebalanceStorm(lambda _: command, plan, directory=tmp_path) as storm:
            storm.run()
            fault = cluster.lose_coordinator("billing")
            assert cluster.coordinator_of("billing") != fault.node_id
            cluster.heal()
            storm.leave()
            assert storm.members == []
