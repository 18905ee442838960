# SPDX-License-Identifier: Apache-2.0
"""The reference of `lograft.types`: everything public there that `lograft` itself does not name."""

from __future__ import annotations

import inspect
from enum import Enum

import lograft
from lograft import types


def types_of_values() -> str:
    """Return the documentation of each type, in the order of the module."""
    lines: list[str] = []
    for name, value in vars(types).items():
        if inspect.isclass(value) and value.__module__ == types.__name__ and name not in lograft.__all__:
            undocumented = ["   :undoc-members:"] if issubclass(value, Enum) else []
            lines += [f".. autoclass:: lograft.types.{name}", "   :members:", *undocumented, ""]
    return "\n".join(["```{eval-rst}", ".. autodata:: lograft.types.Headers", "   :no-value:", "", *lines, "```"])
