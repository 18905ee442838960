# SPDX-License-Identifier: Apache-2.0
"""Spark's examples of README and docs run unchanged, and neither Lograft nor gRPC prints anything."""

from __future__ import annotations

import pytest
from lograft import Admin
from tests.examples import examples, run

SESSION = "from lograft.spark import local_session\nspark = local_session(log_level='off')\n"
VALUES = "df = spark.createDataFrame([('a',), ('b',)], 'value string')\n"
ORDERS = "df = spark.createDataFrame([('7', 1)], 'user_id string, n int').selectExpr('*', 'current_timestamp() AS created')\n"
END = "\nspark.stop()\n"
README = SESSION + VALUES + examples("README.md", "df.write")[0]
PAGE = SESSION + ORDERS + examples("docs/spark.md", "from lograft.spark import local_session")[0] + "\nreplay.collect()"


@pytest.mark.spark
@pytest.mark.parametrize("program", [README, PAGE], ids=["README.md", "docs/spark.md"])
def test_examples_print_nothing_of_ours(bootstrap: str, admin: Admin, program: str) -> None:
    """The output of the JVM does not count."""
    topics = [each.topic for each in admin.list_topics()]
    for topic in ("events", "orders"):
        if topic not in topics:
            admin.create_topic(topic, partition_count=1)
    printed = run(program + END, bootstrap)
    assert not any(each in printed.lower() for each in ("grpc", "lograft", "traceback", "task was", "fork")), printed
