# SPDX-License-Identifier: Apache-2.0
"""Log lines about changes: each change has one, up to a number per second."""

from __future__ import annotations

import logging

import pytest

from metaquorum.controller.commands import ExpireSessions
from metaquorum.controller_service import command_log
from metaquorum.controller_service.command_log import MAX_LINES_PER_S, CommandLog

NAME = command_log.__name__


def note_many(log: CommandLog, count: int, *, now_ms: int) -> None:
    """Note so many changes of two records each."""
    for number in range(count):
        log.note(ExpireSessions(), base_offset=2 * number, last_offset=2 * number + 1, now_ms=now_ms)


def test_changes_are_listed_up_to_a_limit(caplog: pytest.LogCaptureFixture) -> None:
    """The log counts the other changes of the second and writes the count with the first change of a later second."""
    caplog.set_level(logging.INFO, logger=NAME)
    log = CommandLog()
    note_many(log, MAX_LINES_PER_S + 30, now_ms=5_000)
    assert len(caplog.messages) == MAX_LINES_PER_S
    assert caplog.messages[0].startswith("event=command command=ExpireSessions ")
    assert caplog.messages[0].endswith(" base_offset=0 last_offset=1")
    note_many(log, 1, now_ms=6_000)
    last = 2 * (MAX_LINES_PER_S + 29) + 1
    assert caplog.messages[-2] == f"event=commands_not_listed count=30 last_offset={last}"
    assert len(caplog.messages) == MAX_LINES_PER_S + 2


def test_what_was_left_out_is_told_without_another_change(caplog: pytest.LogCaptureFixture) -> None:
    """It is written once: a second without changes writes no line."""
    caplog.set_level(logging.INFO, logger=NAME)
    log = CommandLog()
    note_many(log, MAX_LINES_PER_S + 1, now_ms=5_000)
    log.settle(5_999)
    assert len(caplog.messages) == MAX_LINES_PER_S
    log.settle(6_000)
    log.settle(7_000)
    assert len(caplog.messages) == MAX_LINES_PER_S + 1


def test_debug_lists_all(caplog: pytest.LogCaptureFixture) -> None:
    """The level DEBUG has every change."""
    caplog.set_level(logging.DEBUG, logger=NAME)
    note_many(CommandLog(), MAX_LINES_PER_S + 5, now_ms=5_000)
    levels = [record.levelno for record in caplog.records]
    assert levels == [logging.INFO] * MAX_LINES_PER_S + [logging.DEBUG] * 5
