# SPDX-License-Identifier: Apache-2.0
"""Makes `format("lograft")` known to Spark.

Spark imports every top-level module whose name starts with `pyspark_` and registers its `DefaultSource`; nothing
else belongs here. The source itself is `lograft.spark.datasource`.

Source: `pyspark.sql.worker.lookup_data_sources` of Spark 4.
"""

from __future__ import annotations

from lograft.spark.datasource import LograftDataSource as DefaultSource

__all__ = ["DefaultSource"]
