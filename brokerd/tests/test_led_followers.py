# SPDX-License-Identifier: Apache-2.0
"""What a leader reads for its followers: batches of one leader epoch, also where the log does not know its epochs."""

from __future__ import annotations

from pathlib import Path

from brokerd.tests.leading_replica import LeadingReplica
from storage.log.epochs import LeaderEpochs


def test_batches_of_unknown_epochs_go_one_by_one_with_the_epoch_of_their_header(tmp_path: Path) -> None:
    """As after damage to a whole log, and its epoch checkpoint, that other replicas repaired."""
    replica = LeadingReplica(tmp_path, epochs=(1, 1, 3))
    replica.log._epochs = LeaderEpochs()  # pyright: ignore[reportPrivateUsage]
    found = [replica.followers.read_for_follower(offset, 10**6) for offset in range(3)]
    assert [(each.base_offset, each.next_offset, each.leader_epoch) for each in found] == [
        (0, 1, 1),
        (1, 2, 1),
        (2, 3, 3),
    ]
    replica.log.close()
