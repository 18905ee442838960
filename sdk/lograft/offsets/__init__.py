# SPDX-License-Identifier: Apache-2.0
"""Offsets in your own SQL database, in one transaction with what you make of the records: each record takes effect once.

    offsets = SqlOffsets(engine, consumer, name="billing")
    offsets.create_table()
    offsets.subscribe(["orders"])
    while True:
        records = consumer.poll()
        with offsets.transaction(records) as connection:
            connection.execute(insert(invoices), [...])

It needs SQLAlchemy: `pip install 'lograft[sql]'`. `lograft.offsets.aio` has the same for asyncio.
"""

from __future__ import annotations

from lograft.errors import MissingExtraError, OffsetsFencedError, TransactionFailedError

try:
    from lograft.offsets.sql import SqlOffsets
    from lograft.offsets.table import offsets_table
except ModuleNotFoundError as _error:
    if _error.name != "sqlalchemy":
        raise
    raise MissingExtraError("lograft.offsets needs SQLAlchemy: pip install 'lograft[sql]'") from _error

__all__ = ["OffsetsFencedError", "SqlOffsets", "TransactionFailedError", "offsets_table"]
