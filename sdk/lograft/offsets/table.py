# SPDX-License-Identifier: Apache-2.0
"""The table of offsets. Its definition is public: users create it with their own migrations."""

from __future__ import annotations

from typing import Final

from sqlalchemy import BigInteger, Column, Integer, MetaData, String, Table, inspect
from sqlalchemy.dialects import mysql
from sqlalchemy.engine import Connection

from lograft.errors import InvalidSettingError

DEFAULT_TABLE: Final = "lograft_offsets"
"""Name of the table, unless the application gives another."""

NAME_MAX_LENGTH: Final = 200
"""Characters of the name under which offsets are kept, and of the owner."""

TOPIC_MAX_LENGTH: Final = 249
"""Characters of the name of a topic."""


def _text(length: int) -> String:
    # MySQL and MariaDB compare text without regard to case unless a collation says otherwise.
    return String(length).with_variant(
        mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin"), "mysql", "mariadb"
    )


def offsets_table(metadata: MetaData, name: str = DEFAULT_TABLE, *, schema: str | None = None) -> Table:
    """Return the table of offsets, for example for Alembic. `SqlOffsets.create_table` creates it too.

    Args:
        metadata: gets the table.
        name: name of the table.
        schema: schema of the table; None: the default one.
    """
    return Table(
        name,
        metadata,
        Column("name", _text(NAME_MAX_LENGTH), primary_key=True),
        # 32 hexadecimal digits: a topic that is deleted and created again has another id.
        Column("topic_id", _text(32), primary_key=True),
        Column("partition_id", Integer, primary_key=True, autoincrement=False),
        Column("topic", _text(TOPIC_MAX_LENGTH), nullable=False),
        Column("next_offset", BigInteger, nullable=False),
        Column("epoch", BigInteger, nullable=False),
        Column("owner", _text(NAME_MAX_LENGTH), nullable=False),
        schema=schema,
        mysql_engine="InnoDB",
        mariadb_engine="InnoDB",
    )


def create_table(connection: Connection, table: Table) -> None:
    """Create the table, if it does not exist."""
    table.create(connection, checkfirst=True)


def has_table(connection: Connection, table: Table) -> bool:
    """Return True if the table exists."""
    return inspect(connection).has_table(table.name, schema=table.schema)


def check_name(name: str) -> str:
    """Return the name under which offsets are kept.

    Raises:
        InvalidSettingError: it is empty, too long, or has spaces at an end, which databases compare differently.
    """
    if not name or len(name) > NAME_MAX_LENGTH or name != name.strip() or not name.isprintable():
        raise InvalidSettingError(
            f"name is 1 to {NAME_MAX_LENGTH} printable characters without spaces at the ends, not {name!r}"
        )
    return name
