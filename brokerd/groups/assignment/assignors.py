# SPDX-License-Identifier: Apache-2.0
"""The assignors by name. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from brokerd.groups.assignment.range_assignor import RangeAssignor
from brokerd.groups.assignment.specs import Assignor, UnknownAssignorError
from brokerd.groups.assignment.uniform import UniformAssignor

DEFAULT_ASSIGNOR: Final = UniformAssignor.name
"""Name of the assignor of a group that asks for none."""

ASSIGNORS: Final[Mapping[str, Assignor]] = MappingProxyType(
    {UniformAssignor.name: UniformAssignor(), RangeAssignor.name: RangeAssignor()}
)
"""Every assignor by its name."""


def assignor_named(name: str) -> Assignor:
    """Return the assignor with this name.

    Raises:
        UnknownAssignorError: there is none.
    """
    found = ASSIGNORS.get(name)
    if found is None:
        raise UnknownAssignorError(f"no assignor has the name {name!r}: choose one of {', '.join(ASSIGNORS)}")
    return found
