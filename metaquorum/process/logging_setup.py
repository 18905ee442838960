# SPDX-License-Identifier: Apache-2.0
"""Logging of a server process: cheap lines to stderr.

A leader writes a line for each change of the metadata, and half of the usual cost of a line is spent on fields that no line shows.
Owns the handler of the process and the switches of `logging`. They apply to the whole process, so only its owner may set them.
Source: Python's Logging HOWTO, section "Optimization".
"""

from __future__ import annotations

import logging
import sys
import time
from typing import Final

_NOT_COLLECTED: Final = {
    # The source line of a record, which needs a walk up the stack. It has no public name; the HOWTO names this one.
    "_srcfile": None,
    "logThreads": False,
    "logProcesses": False,
    "logMultiprocessing": False,
    # From Python 3.12 on.
    "logAsyncioTasks": False,
}
"""Attributes of `logging` and the values that turn fields of records off. No format of Lograft shows these fields."""


class LineFormatter(logging.Formatter):
    """Formats the same lines as `logging.Formatter`, but formats each second only once. Belongs to one handler, whose lock guards it.

    Args:
        line_format: format of a line, with `%`.
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
    """Write log lines to stderr, unless this process has set up logging already (as `logging.basicConfig` does).

    Args:
        level: name of the lowest level that is written.
        line_format: format of a line, with `%`; it cannot show threads, processes and source lines.
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
