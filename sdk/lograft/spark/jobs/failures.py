# SPDX-License-Identifier: Apache-2.0
"""Errors of Spark as errors of Lograft: one sentence, and the class that says whether the input is wrong.

Spark wraps an error of a task into the traces of a JVM, of a Python worker and of the driver again. Somebody who runs a ready job
has written no code, and needs the sentence in the middle.
"""

from __future__ import annotations

import re
from typing import Final

from lograft import errors
from lograft.errors import LograftError, UsageError

CAUSES_MAX: Final = 20
"""Most causes of an error that are looked at."""

_OURS: Final = re.compile(r"^(?:\s*\S*: )?(?:lograft|pyspark_lograft)(?:\.\w+)*\.(\w+Error): (.+)$", re.MULTILINE)
"""The last line of a Python traceback with an error of ours."""

_RAISED: Final = re.compile(r"\[USER_RAISED_EXCEPTION\] (.+?)(?: SQLSTATE: \w+)?$", re.MULTILINE)
"""What our own expressions say of a row."""

_CONDITION: Final = re.compile(r"\[([A-Z][A-Z0-9_.]+)\] ([^\n]+)")
_PYTHON: Final = re.compile(r"^(?:\w+\.)*(\w*(?:Error|Exception)): (.+)$", re.MULTILINE)
_INPUT: Final = (
    "MALFORMED_RECORD",
    "MALFORMED_CSV_RECORD",
    "PATH_NOT_FOUND",
    "PATH_ALREADY_EXISTS",
    "UNABLE_TO_INFER_SCHEMA",
    "FAILED_READ_FILE",
    "CANNOT_READ_FILE",
    "INVALID_JSON",
    "UNSUPPORTED",
    "DATA_SOURCE_NOT_FOUND",
)
"""Begins of the conditions that say that the input or an argument is wrong, the most telling ones first."""

_ADVICE: Final = {
    "PATH_ALREADY_EXISTS": "; --overwrite replaces it",
    "JAVA_GATEWAY_EXITED": "; --spark-log error shows what it says",
}


def explained(error: BaseException) -> LograftError:
    """Return the error of a job as an error of Lograft. One that is one already is returned as it is."""
    if isinstance(error, LograftError):
        return error
    text = _whole_text(error)
    ours = _OURS.findall(text)
    if ours:
        name, message = ours[-1]
        # Errors outside of the tree's module are about options.
        return _made(getattr(errors, name, UsageError), message.strip())
    raised = _RAISED.search(text)
    if raised is not None:
        return UsageError(raised.group(1).strip())
    conditions = _CONDITION.findall(text)
    if conditions:
        name, message = min(conditions, key=_rank)
        sentence = re.sub(r" SQLSTATE: \w+.*$", "", message).rstrip(".")
        kind = UsageError if name.startswith(_INPUT) else LograftError
        return kind(f"Spark: {sentence}{_ADVICE.get(name, '')}")
    python = _PYTHON.findall(text)
    if python:
        return LograftError(f"Spark: {python[-1][0]}: {python[-1][1]}")
    lines = text.strip().splitlines()
    return LograftError(f"Spark: {type(error).__name__}{': ' + lines[0] if lines else ''}")


def _rank(condition: tuple[str, str]) -> int:
    """Return how telling a condition is; the smallest is taken, and of equal ones the first."""
    return next((rank for rank, begin in enumerate(_INPUT) if condition[0].startswith(begin)), len(_INPUT))


def _whole_text(error: BaseException) -> str:
    """Return the text of an error and of what caused it, as far as Spark tells its Python side."""
    texts: list[str] = []
    cause: object = error
    while isinstance(cause, BaseException) and len(texts) < CAUSES_MAX:
        texts.append(str(cause))
        cause = getattr(cause, "_cause", None) or cause.__cause__
    return "\n".join(texts)


def _made(kind: type[LograftError], message: str) -> LograftError:
    """Make an error whose class may take other arguments than a message, which are lost."""
    found = kind.__new__(kind, message)
    LograftError.__init__(found, message)
    return found
