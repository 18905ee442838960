# SPDX-License-Identifier: Apache-2.0
"""Changes of the metadata quorum by the admin clients: the refusals, and how a replacement is chosen."""

from __future__ import annotations

from dataclasses import replace

import pytest
from lograft import Admin, aio
from lograft._admin.quorum import _replacement  # pyright: ignore[reportPrivateUsage]
from lograft.errors import InvalidRequestError, RefusedError, UsageError
from lograft.types import QuorumDescription, QuorumReplicaDescription


def replica(node_id: int, *, directory: int = 1, caught_up_ms: int | None = 10) -> QuorumReplicaDescription:
    """Return a replica as the leader sees it."""
    return QuorumReplicaDescription(
        node_id=node_id,
        directory_id=bytes([directory]) * 16,
        address=f"n{node_id}:1",
        log_end_offset=5,
        last_fetch_age_ms=10,
        last_caught_up_age_ms=caught_up_ms,
    )


QUORUM = QuorumDescription(
    cluster_id="c",
    leader_id=1,
    quorum_epoch=3,
    high_watermark=5,
    voters=(replica(1), replica(2), replica(3)),
    observers=(replica(101),),
)


@pytest.mark.parametrize(
    ("observers", "word"),
    [
        ((), "does not fetch"),
        ((replica(2, caught_up_ms=None),), "has not caught up"),
        ((replica(2, caught_up_ms=5_001),), "has not caught up"),
    ],
)
def test_replacement_needs_a_replica_that_has_caught_up(
    observers: tuple[QuorumReplicaDescription, ...], word: str
) -> None:
    """The old voter is removed only if a caught-up replica can replace it."""
    with pytest.raises(RefusedError, match=word):
        _replacement(replace(QUORUM, observers=(*QUORUM.observers, *observers)), 2)


def test_replacement_is_the_replica_that_is_closest() -> None:
    """A replica whose disk was lost later stays known for a while, and lags."""
    observers = (replica(2, directory=7, caught_up_ms=900), replica(2, directory=8, caught_up_ms=20))
    assert _replacement(replace(QUORUM, observers=observers), 2).directory_id == bytes([8]) * 16


def test_servers_refuse_what_cannot_be_done(admin: Admin) -> None:
    """The only voter cannot be removed, no voter can be added, and no other can lead."""
    quorum = admin.describe_quorum()
    (voter,) = quorum.voters
    for work, word in (
        (lambda: admin.remove_voter(voter.node_id), "LAST_VOTER"),
        (lambda: admin.remove_voter(9), "VOTER_NOT_FOUND"),
        (lambda: admin.add_voter(9), "NOT_CAUGHT_UP"),
        (lambda: admin.transfer_leadership(), "NO_SUCCESSOR"),
        (lambda: admin.transfer_leadership(9), "VOTER_NOT_FOUND"),
    ):
        with pytest.raises(InvalidRequestError, match=word):
            work()
    with pytest.raises(RefusedError, match="does not fetch"):
        admin.replace_voter(voter.node_id)
    assert admin.describe_quorum().voters[0].directory_id == voter.directory_id
    assert admin.transfer_leadership(voter.node_id) == voter.node_id, "it leads already"


@pytest.mark.parametrize("node_id", [-1, 2**31, True, "1", None])
def test_node_id_is_checked_before_anything_is_sent(admin: Admin, node_id: object) -> None:
    """Misuse is found in this process."""
    with pytest.raises(UsageError):
        admin.add_voter(node_id)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with pytest.raises(UsageError):
        admin.remove_voter(node_id)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("directory_id", [b"", b"short", "text"])
def test_directory_id_is_checked_before_anything_is_sent(admin: Admin, directory_id: object) -> None:
    """16 bytes, or none at all."""
    with pytest.raises(UsageError):
        admin.add_voter(1, directory_id=directory_id)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def test_asyncio_client_asks_the_same(bootstrap: str) -> None:
    """Both clients share the calls."""
    async with aio.Admin(bootstrap) as admin:
        for work in (admin.add_voter(9), admin.remove_voter(9), admin.replace_voter(9), admin.transfer_leadership(9)):
            with pytest.raises(RefusedError):
                await work
