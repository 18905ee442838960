# SPDX-License-Identifier: Apache-2.0
"""A new voter must support the feature level of the cluster: each fetch reports the levels that the replica supports."""

from __future__ import annotations

import pytest

from metaquorum.raft.messages import FetchRequest
from metaquorum.raft.roles import Leader
from metaquorum.raft.state import Identity
from metaquorum.raft.types import FIRST_LEVEL_ONLY, LevelRange
from metaquorum.raft.voter_changes import AddVoter, ChangeRefusal, RemoveVoter
from metaquorum.raft_codec import quorum_codec
from metaquorum.raft_codec.wire_fields import InvalidMessageError
from metaquorum.testing.scripted_node import CLUSTER_ID, ScriptedNode, key
from metaquorum.tests.raft.voter_changes import ask, catch_up, changes, ids, refused, settled

NEW = 4


def says(node: ScriptedNode, replica: int, levels: LevelRange) -> None:
    """Let a replica that has every record fetch twice, from a process that supports these levels."""
    end, epoch = int(node.state.log.log_end_offset), int(node.state.quorum_epoch)
    for _ in range(2):
        request = node.fetch_request(replica, offset=end, last_epoch=epoch)
        node.receive(FetchRequest(**{name: getattr(request, name) for name in request.__slots__} | {"levels": levels}))


@pytest.mark.parametrize(
    ("levels", "level", "is_taken"),
    [
        (LevelRange(min_level=1, max_level=2), 2, True),
        (LevelRange(min_level=2, max_level=3), 2, True),
        (LevelRange(min_level=1, max_level=1), 2, False),
        (LevelRange(min_level=3, max_level=4), 2, False),
        (FIRST_LEVEL_ONLY, 1, True),
    ],
)
def test_voter_that_cannot_run_at_the_level_is_refused(levels: LevelRange, level: int, is_taken: bool) -> None:
    """Both ends of the reported range are inclusive; a refusal changes nothing."""
    node, _ = settled([1, 2, 3])
    says(node, NEW, levels)
    end = node.state.log.log_end_offset
    outcome = ask(node, AddVoter(key=key(NEW), level=level))
    assert outcome == ([] if is_taken else refused(ChangeRefusal.LEVEL_NOT_SUPPORTED))
    assert ids(node) == ([1, 2, 3, NEW] if is_taken else [1, 2, 3])
    assert (node.state.log.log_end_offset > end) is is_taken


def test_last_word_of_a_replica_counts() -> None:
    """A newer version on the same disk allows the change, and an older one forbids it."""
    node, _ = settled([1, 2, 3])
    newer, older = LevelRange(min_level=1, max_level=2), FIRST_LEVEL_ONLY
    says(node, NEW, newer)
    says(node, NEW, older)
    assert ask(node, AddVoter(key=key(NEW), level=2)) == refused(ChangeRefusal.LEVEL_NOT_SUPPORTED)
    says(node, NEW, newer)
    assert ask(node, AddVoter(key=key(NEW), level=2)) == []


def test_replica_that_says_nothing_knows_the_first_level_only() -> None:
    """Versions that do not report levels support the first one."""
    node, _ = settled([1, 2, 3])
    catch_up(node, NEW)
    assert ask(node, AddVoter(key=key(NEW), level=2)) == refused(ChangeRefusal.LEVEL_NOT_SUPPORTED)
    assert ask(node, AddVoter(key=key(NEW), level=1)) == []


def test_voter_is_not_taken_out_for_a_replacement_that_could_not_be_added() -> None:
    """A replacement takes two changes: the first is refused if the second would be."""
    node, _ = settled([1, 2, 3])
    unknown = RemoveVoter(key=key(3), replacement=AddVoter(key=key(NEW), level=2))
    assert ask(node, unknown) == refused(ChangeRefusal.NOT_CAUGHT_UP)
    says(node, NEW, FIRST_LEVEL_ONLY)
    assert ask(node, unknown) == refused(ChangeRefusal.LEVEL_NOT_SUPPORTED)
    assert (ids(node), changes(node)) == ([1, 2, 3], [])
    says(node, NEW, LevelRange(min_level=1, max_level=2))
    assert ask(node, unknown) == []
    assert ids(node) == [1, 2]


def test_levels_of_voters_are_forgotten_with_the_leadership() -> None:
    """The replica may run another version by now."""
    node, role = settled([1, 2, 3])
    says(node, 2, LevelRange(min_level=1, max_level=2))
    assert role.voters[key(2).node_id].levels == LevelRange(min_level=1, max_level=2)
    node.receive(node.vote_request(3, int(node.state.quorum_epoch) + 1))
    node.elect()
    again = node.state.role
    assert isinstance(again, Leader)
    assert [progress.levels for progress in again.voters.values()] == [None, None]


def test_every_fetch_says_what_this_process_can_run_at() -> None:
    """The fetches of a follower and of a node that looks for a leader, after encoding and decoding."""
    levels = LevelRange(min_level=2, max_level=5)
    node = ScriptedNode(number=9)
    identity = node.state.identity
    node.state.identity = Identity(
        key=identity.key,
        cluster_id=CLUSTER_ID,
        address="n9:9093",
        bootstrap_addresses=identity.bootstrap_addresses,
        levels=levels,
    )
    node.start()
    node.follow(2, 1)
    requests = [request for _, request in node.sent(FetchRequest)]
    assert len(requests) > 1
    assert {request.levels for request in requests} == {levels}
    message = quorum_codec.encode_fetch_request(requests[-1])
    assert quorum_codec.decode_fetch_request(message) == requests[-1]
    message.min_feature_level = message.max_feature_level = 0
    assert quorum_codec.decode_fetch_request(message).levels == FIRST_LEVEL_ONLY
    for low, high in ((-1, 1), (3, 2)):
        message.min_feature_level, message.max_feature_level = low, high
        with pytest.raises(InvalidMessageError, match="max_feature_level"):
            quorum_codec.decode_fetch_request(message)
