# SPDX-License-Identifier: Apache-2.0
"""Exceptions that a server catches, logs and lives on with: a fault of its own code, that no callback and no task lets out.

Owns which records of the log are faults. Law: none of them is one of Lograft's own laws that broke, or of Python's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final

FAULTS: Final = (AssertionError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError)
"""What the environment never raises: the disk, the network and peers have errors of other kinds."""


class LoggedFaults(logging.Handler):
    """Tells of each record of level ERROR or above that comes with an exception of our own.

    Args:
        on_fault: told what it was.
    """

    def __init__(self, on_fault: Callable[[str], None]) -> None:
        super().__init__(logging.ERROR)
        self._on_fault = on_fault

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler.emit`."""
        error = None if not record.exc_info else record.exc_info[1]
        if isinstance(error, FAULTS):
            self._on_fault(f"logged by {record.name}: {record.getMessage()}: {error!r}")

    @contextmanager
    def listening(self) -> Generator[None]:
        """Hear what all loggers say."""
        logging.getLogger().addHandler(self)
        try:
            yield
        finally:
            logging.getLogger().removeHandler(self)
