# SPDX-License-Identifier: Apache-2.0
"""Logging of a server process: its lines equal those of Python's formatter, and only the owner of a process sets it up."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr

from metaquorum.process.logging_setup import LineFormatter, log_to_stderr

LINE_FORMAT = "time=%(asctime)s level=%(levelname)s logger=%(name)s %(message)s"
SWITCHES = ("_srcfile", "logThreads", "logProcesses", "logMultiprocessing", "logAsyncioTasks")
_ABSENT = object()


@contextmanager
def fresh_process() -> Iterator[io.StringIO]:
    """Take away the logging of this process and yield what is written to stderr; restore everything afterwards."""
    logger = logging.getLogger()
    handlers, level = logger.handlers, logger.level
    switches = {name: getattr(logging, name, _ABSENT) for name in SWITCHES}
    logger.handlers = []
    try:
        with redirect_stderr(io.StringIO()) as written:
            yield written
    finally:
        logger.handlers = handlers
        logger.setLevel(level)
        for name, value in switches.items():
            if value is not _ABSENT:
                setattr(logging, name, value)
            elif hasattr(logging, name):
                delattr(logging, name)


def record_at(created: float) -> logging.LogRecord:
    """Make a record of a time, seconds since the epoch."""
    record = logging.LogRecord("quorum", logging.INFO, __file__, 1, "event=%s count=%d", ("append", 3), None)
    record.created = created
    record.msecs = int((created - int(created)) * 1_000) + 0.0
    return record


def test_lines_are_those_of_the_standard_formatter() -> None:
    """Within a second, into the next one and back, a line equals that of `logging.Formatter`."""
    ours, standard = LineFormatter(LINE_FORMAT), logging.Formatter(LINE_FORMAT)
    for created in (1_700_000_000.0, 1_700_000_000.0625, 1_700_000_000.9995, 1_700_000_001.5, 1_700_000_000.25):
        assert ours.format(record_at(created)) == standard.format(record_at(created))


def test_an_exception_is_written_with_its_trace() -> None:
    """The traceback is below the line, as in Python's own formatter."""
    with fresh_process() as stderr:
        log_to_stderr("INFO", line_format=LINE_FORMAT)
        try:
            raise ValueError("no such block")
        except ValueError:
            logging.getLogger("quorum").exception("event=call_failed")
        lines = stderr.getvalue().splitlines()
        assert lines[0].endswith("level=ERROR logger=quorum event=call_failed")
        assert lines[1] == "Traceback (most recent call last):"
        assert lines[-1] == "ValueError: no such block"


def test_the_level_is_respected() -> None:
    """Records below the level are not written."""
    with fresh_process() as stderr:
        log_to_stderr("WARNING", line_format=LINE_FORMAT)
        logging.getLogger("quorum").info("event=quiet")
        logging.getLogger("quorum").warning("event=%s", "loud")
        (line,) = stderr.getvalue().splitlines()
        assert line.endswith("level=WARNING logger=quorum event=loud")


def test_logging_that_is_set_up_is_left_alone() -> None:
    """A process with its own logging keeps its handlers, its level, and the source positions of records."""
    with fresh_process() as stderr:
        logger = logging.getLogger()
        handler = logging.StreamHandler(io.StringIO())
        logger.addHandler(handler)
        logger.setLevel("ERROR")
        before = [getattr(logging, name, None) for name in SWITCHES]
        log_to_stderr("INFO", line_format=LINE_FORMAT)
        assert (logger.handlers, logger.level) == ([handler], logging.ERROR)
        assert [getattr(logging, name, None) for name in SWITCHES] == before
        assert stderr.getvalue() == ""
