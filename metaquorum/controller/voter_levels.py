# SPDX-License-Identifier: Apache-2.0
"""What a voter of the quorum can run at, as a command names it.

Owns the value. Knows neither the quorum nor how it was learnt: whoever gives the command does.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class VoterLevels:
    """Feature levels at which one voter can run, by its own word.

    Attributes:
        node_id: node id.
        min_level: lowest, inclusive; None: it has not said yet, or is not there.
        max_level: highest, inclusive; None together with the other.
    """

    node_id: int
    min_level: int | None
    max_level: int | None

    @property
    def is_known(self) -> bool:
        """Whether it has said."""
        return self.min_level is not None and self.max_level is not None

    def has(self, level: int) -> bool:
        """Whether it is known to be able to run at this level."""
        return self.min_level is not None and self.max_level is not None and self.min_level <= level <= self.max_level
