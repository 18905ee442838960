# SPDX-License-Identifier: Apache-2.0
"""The reference of the command line, from the trees of commands themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer
from lograft.cli.app import make_app

import brokerd.__main__ as brokerd_program
import metaquorum.__main__ as metaquorum_program


def commands_of_clients() -> str:
    """Return the reference of `lograft`."""
    return "\n".join(_lines("lograft", make_app(), level=2))


def commands_of_servers() -> str:
    """Return the reference of `brokerd` and `metaquorum`."""
    programs = {"brokerd": brokerd_program.app, "metaquorum": metaquorum_program.app}
    return "\n".join(line for name, app in programs.items() for line in _lines(name, app, level=2))


def _lines(program: str, app: typer.Typer, *, level: int) -> Iterator[str]:
    """Yield the lines of a program: first its own options, then one section for each command."""
    root: Any = typer.main.get_command(app)
    own = _rows(root)
    if own:
        yield from (f"{'#' * level} `{program}`", "", _sentence(root.help), "", *own)
    yield from _sections(program, root, level)


def _sections(path: str, group: Any, level: int) -> Iterator[str]:
    for name, command in sorted(group.commands.items()):
        if command.hidden:
            continue
        words = f"{path} {name}"
        yield from (f"{'#' * level} `{words}`", "", _sentence(command.help), "")
        # A group may do something by itself, and has the options of that.
        own = getattr(command, "default", None) if hasattr(command, "commands") else command
        if own is not None:
            yield from ("```text", " ".join([words, *_usage(own)]), "```", "", *_rows(own))
        if hasattr(command, "commands"):
            yield from _sections(words, command, level + 1)


def _usage(command: Any) -> Iterator[str]:
    yield "[OPTIONS]"
    for each in command.params:
        if each.param_type_name == "argument":
            name = _argument_name(each)
            yield name if each.required else f"[{name}]"


def _rows(command: Any) -> list[str]:
    """Return the table of the arguments and options of a command, each as `lograft COMMAND --help` has it."""
    shown = [each for each in command.params if not each.hidden]
    if not shown:
        return []
    return ["| option | meaning |", "|---|---|", *map(_row, shown), ""]


def _row(parameter: Any) -> str:
    is_argument = parameter.param_type_name == "argument"
    names = [_argument_name(parameter)] if is_argument else [*parameter.opts, *parameter.secondary_opts]
    facts = ["Required." if parameter.required else "", _sentence(parameter.help), _default(parameter.default)]
    if parameter.min is not None or parameter.max is not None:
        facts.append(_range(parameter.min, parameter.max))
    if parameter.multiple:
        facts.append("May be repeated.")
    variables = [parameter.envvar] if isinstance(parameter.envvar, str) else parameter.envvar or []
    facts += [f"Variable: `{variable}`." for variable in variables]
    return f"| {', '.join(f'`{name}`' for name in names)} | {' '.join(filter(None, facts))} |"


def _argument_name(parameter: Any) -> str:
    return parameter.metavar or f"{parameter.name.upper()}{'...' if parameter.nargs == -1 else ''}"


def _range(low: int | None, high: int | None) -> str:
    if high is None:
        return f"At least {low:,}."
    return f"At most {high:,}." if low is None else f"{low:,} to {high:,}."


def _default(value: object) -> str:
    if value is None or value == "" or value is False or callable(value):
        return ""
    return f"Default: `{getattr(value, 'value', value)}`."


def _sentence(text: str | None) -> str:
    """Return a help text on one line, in which nothing is markup by accident."""
    line = " ".join((text or "").split())
    for character in "\\`*_<>[]|$":
        line = line.replace(character, "\\" + character)
    return line if not line or line[-1] in ".!?" else f"{line}."
