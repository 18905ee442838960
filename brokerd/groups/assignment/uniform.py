# SPDX-License-Identifier: Apache-2.0
"""The assignor `uniform`: even sizes over all topics together, and as few moves as that allows.

Pure. Source: KIP-848 (uniform assignor).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from brokerd.groups.assignment.differing import share_differing
from brokerd.groups.assignment.numbered import number
from brokerd.groups.assignment.sharing import share
from brokerd.groups.assignment.specs import Assignment, MemberSpec, TopicSpec


class UniformAssignor:
    """Shares all partitions evenly. Implements `Assignor`."""

    name = "uniform"

    def assign(self, members: Sequence[MemberSpec], topics: Mapping[bytes, TopicSpec]) -> Assignment:
        """Return the assignment; see `Assignor.assign`."""
        group = number(members, topics)
        owners = group.owners()
        if len(group.subscriptions) == 1:
            share(owners, group.subscriptions[0].members, group.homes, group.rack_of)
        elif group.subscriptions:
            share_differing(group, owners)
        return group.assignment(owners)
