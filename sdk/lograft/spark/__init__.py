# SPDX-License-Identifier: Apache-2.0
"""Lograft in PySpark: `spark.read.format("lograft")` and `df.write.format("lograft")`.

This package only names the public functions and classes. Python imports each of them at its first use (PEP 562). So an import
of this package loads neither PySpark nor pyarrow nor a client. Spark finds the data source through the module
`pyspark_lograft`.

    from lograft.spark import ensure_java, local_session
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from lograft.spark.datasource import LograftDataSource as LograftDataSource
    from lograft.spark.java import JavaNotFoundError as JavaNotFoundError
    from lograft.spark.java import JavaRuntime as JavaRuntime
    from lograft.spark.java import ensure_java as ensure_java
    from lograft.spark.session import local_session as local_session
    from lograft.spark.values import OptionError as OptionError

__all__ = [
    "JavaNotFoundError",
    "JavaRuntime",
    "LograftDataSource",
    "OptionError",
    "ensure_java",
    "local_session",
]

_HOMES: Final = {
    "JavaNotFoundError": "lograft.spark.java",
    "JavaRuntime": "lograft.spark.java",
    "LograftDataSource": "lograft.spark.datasource",
    "OptionError": "lograft.spark.values",
    "ensure_java": "lograft.spark.java",
    "local_session": "lograft.spark.session",
}


def __getattr__(name: str) -> object:
    """Import a public name from its module at the first use."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'lograft.spark' has no attribute {name!r}")
    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
