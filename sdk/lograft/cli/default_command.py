# SPDX-License-Identifier: Apache-2.0
"""A group of commands that does something by itself: words that name no command of it are the arguments of its default command.

`lograft ingest orders.csv --topic orders` runs the job, `lograft ingest list` the command `list`. A file with the name of a command
is given as `./list`. The help of the group is that of the default command, and lists the others.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final, cast

from typer.core import TyperCommand, TyperGroup

DEFAULT: Final = "(default)"
"""Name under which a group has its default command: `app.command(DEFAULT, cls=DefaultCommand, hidden=True)`. Nobody types it."""


_Context: Any = cast("Any", TyperCommand).context_class


class _PathOfGroup(_Context):
    """A context without a word of its own."""

    @property
    def command_path(self) -> str:
        """The words of the group."""
        above: Any = super()
        return str(above.command_path).rstrip()


class DefaultCommand(TyperCommand):
    """The default command of a group. Its usage is that of the group."""

    context_class: type[Any] = _PathOfGroup

    def make_context(self, info_name: Any, args: Any, parent: Any = None, **extra: Any) -> Any:
        """Make a context whose path is that of the group."""
        return super().make_context(None, args, parent, **extra)


class GroupWithDefault(TyperGroup):
    """A group with a default command."""

    _has_help_of_default: bool = False

    @property
    def default(self) -> Any:
        """The default command."""
        return self.commands[DEFAULT]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Give words that name no command to the default command."""
        is_for_group = not args or args[0] in self.commands or args[0] in ctx.help_option_names
        return super().parse_args(ctx, args if is_for_group else [DEFAULT, *args])

    def get_params(self, ctx: Any) -> Any:
        """Return the own parameters; for help and completion those of the default command."""
        return self.default.get_params(ctx) if self._has_help_of_default else super().get_params(ctx)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the usage of the default command."""
        return self.default.collect_usage_pieces(ctx)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help."""
        with self._as_default():
            super().format_help(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Return commands, and what the default command completes."""
        with self._as_default():
            found = super().shell_complete(ctx, incomplete)
        if incomplete.startswith("-"):
            return found
        first = next((each for each in self.default.params if each.param_type_name == "argument"), None)
        return found if first is None else [*found, *first.shell_complete(ctx, incomplete)]

    @contextmanager
    def _as_default(self) -> Generator[None]:
        self._has_help_of_default = True
        try:
            yield
        finally:
            self._has_help_of_default = False
