# SPDX-License-Identifier: Apache-2.0
"""Whom or what a command of the controller is about, for the line that the log gets.

Owns the words. Decides nothing.
"""

from __future__ import annotations

from metaquorum.controller.commands import Command, Heartbeat


def subject_of(command: Command) -> str:
    """Return the subject of a command as `key=value`."""
    topic: str | None = getattr(command, "topic", None)
    broker_id: int | None = getattr(command, "broker_id", None)
    if topic is not None:
        return f"topic={topic}"
    if broker_id is not None:
        wanted = " want_shutdown=true" if isinstance(command, Heartbeat) and command.want_shutdown else ""
        return f"broker_id={broker_id}{wanted}"
    return "subject=cluster"
