# SPDX-License-Identifier: Apache-2.0
"""Which errors of databases mean that the same transaction may succeed later.

SQLAlchemy unifies the classes of errors, not their codes: PostgreSQL has SQLSTATEs, MySQL and MariaDB have numbers, SQLite has
result codes. Sources: PostgreSQL, "Error Codes"; MariaDB, "Error Code Reference"; sqlite.org/rescode.html.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

_SQLSTATES: Final = frozenset({"40001", "40P01", "55P03"})
"""Serialization failure, deadlock, lock not available."""

_SQLSTATE_CLASSES: Final = frozenset({"08", "53", "57"})
"""Connection, resources, an operator's intervention (shutdown, statement timeout)."""

_MYSQL_NUMBERS: Final = frozenset(
    {1020, 1040, 1053, 1152, 1158, 1159, 1160, 1161, 1180, 1205, 1213, 1317, 1927, 2002, 2003, 2006, 2013, 2055, 4031}
)
"""Changed rows, lock timeout, deadlock; too many connections, shutdown, lost connections."""

_SQLITE_CODES: Final = frozenset({5, 6})
"""SQLITE_BUSY and SQLITE_LOCKED, without the byte of the extended code."""


def is_temporary(error: BaseException) -> bool:
    """Return True if a transaction failed for a cause that passes: another transaction, a lock, a database that is away."""
    if isinstance(error, PoolTimeoutError):
        return True
    if not isinstance(error, DBAPIError):
        return False
    cause: Any = error.orig
    state = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
    if error.connection_invalidated or state in _SQLSTATES:
        return True
    if state is not None:
        return str(state)[:2] in _SQLSTATE_CLASSES
    code = getattr(cause, "sqlite_errorcode", None)
    if code is not None:
        return code & 0xFF in _SQLITE_CODES
    number = cause.args[0] if cause is not None and cause.args else None
    if isinstance(number, int):
        return number in _MYSQL_NUMBERS or (number == 0 and isinstance(error, InterfaceError))
    # Without a code of any kind, the driver did not hear from the database: libpq says so when it cannot connect.
    return isinstance(error, OperationalError) and "psycopg" in type(cause).__module__
