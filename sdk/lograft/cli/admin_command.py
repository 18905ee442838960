# SPDX-License-Identifier: Apache-2.0
"""Commands over calls of the admin client. Each command is registered together with its calls.

    @admin_command(topics_app, Admin.delete_topic)
    def delete(admin: Admin, topic: TopicName, as_json: Json = False) -> None: ...

This module owns the options that all these commands share, and makes their admin client. A command's own options come before
the shared ones in the help.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Concatenate, Final, ParamSpec, cast, get_type_hints

import typer

from lograft.admin import Admin
from lograft.cli.options import DEFAULT_BOOTSTRAP, DEFAULT_TIMEOUT_MS, Bootstrap, ClusterId, TimeoutMs

P = ParamSpec("P")

VERBS: Final[dict[Callable[..., Any], tuple[str, ...]]] = {}
"""The admin calls of each command, by the callback that typer has."""


def admin_command(
    app: typer.Typer, *verbs: Callable[..., object], name: str | None = None
) -> Callable[[Callable[Concatenate[Admin, P], None]], Callable[Concatenate[Admin, P], None]]:
    """Register a function as a command. It is called with an admin client and its own options.

    Args:
        app: the group.
        verbs: methods of `Admin` for which this is the command.
        name: name of the command; None means the name of the function.
    """

    def register(function: Callable[Concatenate[Admin, P], None]) -> Callable[Concatenate[Admin, P], None]:
        def run(
            *,
            bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
            cluster_id: ClusterId = None,
            timeout_ms: TimeoutMs = DEFAULT_TIMEOUT_MS,
            **own: Any,
        ) -> None:
            with Admin(bootstrap, cluster_id=cluster_id, request_timeout_ms=timeout_ms) as admin:
                cast("Any", function)(admin, **own)

        _, *parameters = _parameters(function)
        shared = [each for each in _parameters(run) if each.kind is inspect.Parameter.KEYWORD_ONLY]
        as_json = [each for each in parameters if each.name == "as_json"]
        functools.update_wrapper(run, function)
        everything = [*(each for each in parameters if each not in as_json), *shared, *as_json]
        signature = inspect.Signature([each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in everything])
        cast("Any", run).__signature__ = signature
        run.__annotations__ = {each.name: each.annotation for each in everything}
        VERBS[run] = tuple(verb.__name__ for verb in verbs)
        app.command(name)(run)
        return function

    return register


def _parameters(function: Callable[..., object]) -> list[inspect.Parameter]:
    """Return the parameters of a function, with annotations as types instead of strings."""
    types = get_type_hints(function, include_extras=True)
    parameters = inspect.signature(function, follow_wrapped=False).parameters.values()
    return [each.replace(annotation=types.get(each.name, each.annotation)) for each in parameters]
