# SPDX-License-Identifier: Apache-2.0
"""Faults of a server's own code that the server catches, logs and survives, so that no callback and no task raises them.

Owns which log records count as faults. Law: no log record has an exception of a broken assertion or of a Python programming error.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final

FAULTS: Final = (AssertionError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError)
"""Errors that the environment never raises: disk, network and peers have errors of other types."""


class LoggedFaults(logging.Handler):
    """Reports each log record of level ERROR or above with an exception from `FAULTS`.

    Args:
        on_fault: called with a description of the fault.
    """

    def __init__(self, on_fault: Callable[[str], None]) -> None:
        super().__init__(logging.ERROR)
        self._on_fault = on_fault

    def emit(self, record: logging.LogRecord) -> None:
        """Check a log record (see `logging.Handler.emit`)."""
        error = None if not record.exc_info else record.exc_info[1]
        if isinstance(error, FAULTS):
            self._on_fault(f"logged by {record.name}: {record.getMessage()}: {error!r}")

    @contextmanager
    def listening(self) -> Generator[None]:
        """Listen to all loggers."""
        logging.getLogger().addHandler(self)
        try:
            yield
        finally:
            logging.getLogger().removeHandler(self)
