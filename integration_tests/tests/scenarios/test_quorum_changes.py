# SPDX-License-Identifier: Apache-2.0
"""The metadata quorum of real processes changes its voters: a wiped disk is replaced by one command."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from lograft import Admin
from lograft.cli import main
from lograft.errors import InvalidRequestError, LograftError, TopicAlreadyExistsError

from integration_tests.harness.cluster import ADMIN_TIMEOUT_MS, Cluster
from integration_tests.harness.metadata import quorum_of
from integration_tests.harness.wait import wait_for

TIMEOUT_S = 30.0


def created(admin: Admin, topic: str) -> bool:
    """Try to create a topic in a quorum that may have no leader just now. Return True if it exists."""
    try:
        admin.create_topic(topic)
    except TopicAlreadyExistsError:
        return True
    except LograftError:
        return False
    return True


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, object]]:
    """Run `lograft quorum ...`, and return its exit code and its output."""
    with pytest.raises(SystemExit) as end:
        main(["quorum", *arguments, "--json"])
    assert isinstance(end.value.code, int)
    out = capsys.readouterr().out
    return end.value.code, json.loads(out) if out else {}


def observed_with_everything(admin: Admin, node_id: int) -> bool:
    """Return True if a replica of this node fetches as an observer and has caught up."""
    quorum = quorum_of(admin)
    found = () if quorum is None else quorum.observers
    return any(each.node_id == node_id and each.last_caught_up_age_ms is not None for each in found)


@pytest.mark.process
@pytest.mark.timeout(240)
def test_wiped_voter_is_replaced_by_one_command_and_is_needed_for_commits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """After kill -9 and a lost disk: start, replace, and lose another voter. Every topic exists."""
    with (
        Cluster(tmp_path, voter_count=3, broker_count=1) as cluster,
        Admin(cluster.bootstrap, request_timeout_ms=ADMIN_TIMEOUT_MS) as admin,
    ):
        admin.create_topic("before")
        quorum = admin.describe_quorum()
        wiped, other = (voter.node_id for voter in quorum.voters if voter.node_id != quorum.leader_id)
        old_ids = {voter.node_id: voter.directory_id for voter in quorum.voters}
        process = cluster.voters[wiped]
        process.kill()
        shutil.rmtree(tmp_path / process.name)
        process.start()
        wait_for(lambda: observed_with_everything(admin, wiped), timeout_s=TIMEOUT_S, what="the new replica")
        code, answer = command(capsys, "replace-voter", str(wiped), "--bootstrap", cluster.bootstrap)
        assert code == 0, cluster.logs()
        quorum = admin.describe_quorum()
        voters = {voter.node_id: voter.directory_id for voter in quorum.voters}
        assert set(voters) == {1, 2, 3}
        assert answer["node_id"] == wiped
        replaced = voters[wiped]
        assert replaced is not None
        assert answer["directory_id"] == replaced.hex()
        assert replaced != old_ids[wiped]
        # From here on no topic is created without the new replica.
        cluster.voters[other].kill()
        admin.create_topic("after")
        # No leader is elected without it either, and it still has its data after its own restart.
        process.kill()
        process.start()
        wait_for(lambda: created(admin, "last"), timeout_s=TIMEOUT_S, what="a commit after the restart")
        assert [topic.topic for topic in admin.list_topics()] == ["after", "before", "last"]


@pytest.mark.process
@pytest.mark.timeout(240)
def test_leader_hands_over_to_the_voter_that_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By one command, through a broker; then the old leader is taken out and brought in again."""
    with (
        Cluster(tmp_path, voter_count=3, broker_count=1) as cluster,
        Admin(cluster.bootstrap, request_timeout_ms=ADMIN_TIMEOUT_MS) as admin,
    ):
        admin.create_topic("before")
        quorum = admin.describe_quorum()
        first = quorum.leader_id
        assert first is not None
        target = next(voter.node_id for voter in quorum.voters if voter.node_id != first)
        code, answer = command(capsys, "transfer-leader", str(target), "--bootstrap", cluster.bootstrap)
        assert (code, answer) == (0, {"leader_id": target}), cluster.logs()
        broker_id = next(iter(cluster.brokers))
        wait_for(lambda: observed_with_everything(admin, broker_id), timeout_s=TIMEOUT_S, what="the broker")
        with pytest.raises(InvalidRequestError, match="NO_ADDRESS"):
            # A broker follows the log, but it cannot vote.
            admin.add_voter(broker_id)

        def all_caught_up() -> bool:
            found = quorum_of(admin)
            return found is not None and all(voter.last_caught_up_age_ms is not None for voter in found.voters)

        wait_for(all_caught_up, timeout_s=TIMEOUT_S, what="all voters to have everything")
        code, _ = command(capsys, "remove-voter", str(first), "--bootstrap", cluster.bootstrap)
        assert code == 0
        assert first not in [voter.node_id for voter in admin.describe_quorum().voters]
        wait_for(lambda: observed_with_everything(admin, first), timeout_s=TIMEOUT_S, what="the observer")
        code, _ = command(capsys, "add-voter", str(first), "--bootstrap", cluster.bootstrap)
        assert code == 0
        assert first in [voter.node_id for voter in admin.describe_quorum().voters]
        admin.create_topic("after")
