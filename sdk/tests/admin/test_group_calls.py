# SPDX-License-Identifier: Apache-2.0
"""How the calls about groups use their time: coordinators that load are asked again, and a list says what it lacks.

The cluster is a script of answers, because no real one is half there for as long as a test needs.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from lograft._admin.calls import AdminCalls
from lograft._admin.groups import for_each_group, list_groups
from lograft._client.backoff import Backoff
from lograft.errors import CoordinatorNotAvailableError, GroupNotFoundError, LograftError, RequestTimeoutError
from lograft.v1 import group_pb2 as pb


@dataclass
class ScriptedCluster:
    """Answers each request with the next of a script; the last one again and again."""

    script: list[pb.ListGroupsResponse | LograftError]
    cluster_id: str = ""
    asked: list[pb.ListGroupsRequest] = field(default_factory=list[pb.ListGroupsRequest])

    async def ask(self, _method: object, request: pb.ListGroupsRequest, *, timeout_ms: int) -> pb.ListGroupsResponse:
        assert timeout_ms >= 1
        self.asked.append(request)
        answer = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(answer, LograftError):
            raise answer
        return answer

    def backoff(self) -> Backoff:
        return Backoff(base_ms=20, limit_ms=50, rng=random.Random(1))


@dataclass
class NoCoordinators:
    """Knows nobody, and finds nobody wrong."""

    async def find_all(self, group_ids: list[str], *, timeout_ms: int) -> None:
        assert timeout_ms >= 1
        assert len(group_ids) == len(set(group_ids))


def calls(*script: pb.ListGroupsResponse | LograftError, timeout_ms: int = 600) -> tuple[AdminCalls, ScriptedCluster]:
    cluster = ScriptedCluster(list(script))
    return AdminCalls(cast("Any", cluster), cast("Any", NoCoordinators()), timeout_ms), cluster


def page(*groups: str, missing: tuple[int, ...] = (), has_more: bool = False) -> pb.ListGroupsResponse:
    listed = [pb.ListedGroup(group_id=each, state=pb.GROUP_STATE_STABLE) for each in groups]
    return pb.ListGroupsResponse(groups=listed, missing_coordinator_ids=missing, has_more=has_more)


async def test_list_waits_for_a_coordinator_that_loads() -> None:
    """The page is asked for again, and only its last answer counts."""
    admin, cluster = calls(page("a", missing=(2,)), page("a", missing=(-1,)), page("a", "b", has_more=True), page("c"))
    found = await list_groups(admin)
    assert ([each.group for each in found.groups], found.missing_coordinator_ids) == (["a", "b", "c"], ())
    assert [each.after_group_id for each in cluster.asked] == ["", "", "", "b"]


async def test_list_that_stays_incomplete_says_so_in_time() -> None:
    """After the time of the call, with what there is. A floor lies between two attempts."""
    admin, cluster = calls(page("a", missing=(3, -1)))
    started_s = time.monotonic()
    found = await list_groups(admin)
    assert time.monotonic() - started_s < 5
    assert ([each.group for each in found.groups], found.missing_coordinator_ids) == (["a"], (-1, 3))
    assert 2 <= len(cluster.asked) <= 60


async def test_attempt_without_time_keeps_what_an_earlier_one_found() -> None:
    """Only without any answer the call fails."""
    admin, _ = calls(page("a", missing=(3,)), RequestTimeoutError("no time"))
    found = await list_groups(admin)
    assert ([each.group for each in found.groups], found.missing_coordinator_ids) == (["a"], (3,))
    admin, _ = calls(RequestTimeoutError("no time"))
    with pytest.raises(RequestTimeoutError):
        await list_groups(admin)


async def test_failure_of_a_group_hides_no_other() -> None:
    """Results are in the order of the groups, named twice or not, and a fault of this program is no result."""
    admin, _ = calls(page())

    async def ask(group: str, timeout_ms: int) -> str:
        assert 1 <= timeout_ms <= 600
        failures: dict[str, Callable[[], Exception]] = {
            "gone": lambda: GroupNotFoundError("gone"),
            "moves": lambda: CoordinatorNotAvailableError("moves"),
            "fault": lambda: ZeroDivisionError(),
        }
        if group in failures:
            raise failures[group]()
        return group

    results = await for_each_group(
        admin, ["a", "gone", "b", "moves", "a"], ask, lambda group, error: f"{group}: {error}"
    )
    assert results == ["a", "gone: gone", "b", "moves: moves", "a"]
    with pytest.raises(ZeroDivisionError):
        await for_each_group(admin, ["a", "fault"], ask, lambda group, error: f"{group}: {error}")
