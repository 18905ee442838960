# SPDX-License-Identifier: Apache-2.0
"""Real processes whose metadata quorum is down: brokers answer from their own images, and say so."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from lograft import Admin
from lograft.errors import LograftError, StaleMetadataWarning

from integration_tests.harness.cli import run_lograft
from integration_tests.harness.cluster import Cluster


@pytest.mark.process
@pytest.mark.timeout(120)
def test_topics_are_listed_and_described_while_the_quorum_has_no_leader(tmp_path: Path) -> None:
    """SDK and command line show a warning. Calls that need the controller are refused as before."""
    with Cluster(tmp_path, voter_count=1, broker_count=1) as cluster:
        with Admin(cluster.bootstrap, request_timeout_ms=20_000) as admin:
            admin.create_topic("there", partition_count=2)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                assert [topic.topic for topic in admin.list_topics()] == ["there"]
            for voter in cluster.voters.values():
                voter.kill()
            with pytest.warns(StaleMetadataWarning):
                assert [topic.topic for topic in admin.list_topics()] == ["there"]
            with pytest.warns(StaleMetadataWarning):
                assert admin.describe_topic("there").partition_count == 2
        done = run_lograft("topics", "list", "--bootstrap", cluster.bootstrap, "--timeout-ms", "20000")
        assert done.returncode == 0
        assert "there" in done.stdout
        assert "note: the metadata quorum has no leader" in done.stderr
        with Admin(cluster.bootstrap, request_timeout_ms=4_000) as admin, pytest.raises(LograftError):
            admin.create_topic("not-there")
