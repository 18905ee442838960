# SPDX-License-Identifier: Apache-2.0
"""Logging of a server process: lines to stderr, made at little cost.

A leader writes a line for each change of the metadata, and half of what that costs is spent on what no line shows.
Owns the handler of the process and the switches of `logging`, which hold for the whole of it: for the owner of a process only.
Source: Python's Logging HOWTO, section "Optimization".
"""

from __future__ import annotations

import logging
import sys
import time
from typing import Final

_NOT_COLLECTED: Final = {
    # Where a line comes from: a walk up the stack. It has no public name; this is the one that the HOWTO gives.
    "_srcfile": None,
    "logThreads": False,
    "logProcesses": False,
    "logMultiprocessing": False,
    # From Python 3.12 on.
    "logAsyncioTasks": False,
}
"""What records shall not have: attributes of `logging` and the values that say so. No format of ours shows any of it."""


class LineFormatter(logging.Formatter):
    """Makes the same lines as `logging.Formatter` does; the text of a second is made once. One handler's, whose lock guards it.

    Args:
        line_format: of one line, with `%`.
    """

    def __init__(self, line_format: str) -> None:
        super().__init__(line_format)
        self._second: int | None = None
        self._second_text = ""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        """Return the local time of a record with its milliseconds."""
        assert datefmt is None, "the time has one format"
        second = int(record.created)
        if second != self._second:
            self._second_text = time.strftime(self.default_time_format, self.converter(second))
            self._second = second
        return f"{self._second_text},{int(record.msecs):03d}"


def log_to_stderr(level: str, *, line_format: str) -> None:
    """Write log lines to stderr, unless this process has set up logging already, as `logging.basicConfig`.

    Args:
        level: name of the lowest level that is written.
        line_format: of one line, with `%`; threads, processes and source lines are not known to it.
    """
    logger = logging.getLogger()
    if logger.handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(line_format))
    logger.addHandler(handler)
    logger.setLevel(level)
    for name, value in _NOT_COLLECTED.items():
        setattr(logging, name, value)
