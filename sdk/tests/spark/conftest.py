# SPDX-License-Identifier: Apache-2.0
"""One Spark session and one embedded cluster for all Spark tests; a separate topic for each test."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from lograft.spark import local_session

if TYPE_CHECKING:
    from lograft import Admin
    from pyspark.sql import DataFrame, SparkSession


APPLICATION = "lograft tests"


@pytest.fixture(scope="session")
def spark_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    from pyspark.sql import SparkSession

    yield tmp_path_factory.mktemp("spark")
    session = SparkSession.getActiveSession()
    if session is not None:
        session.stop()


@pytest.fixture
def spark(spark_directory: Path) -> SparkSession:
    """The session of these tests. A page of the documentation that ran in this process may have stopped it, or left its own."""

    def get_or_start() -> SparkSession:
        # Small Arrow batches, so that a few thousand rows make many batches. Tasks that fail are repeated.
        return local_session(
            APPLICATION,
            task_attempts=4,
            directory=spark_directory,
            log_level="off",
            settings={"spark.sql.execution.arrow.maxRecordsPerBatch": "500"},
        )

    session = get_or_start()
    if session.sparkContext.appName != APPLICATION:
        session.stop()
        session = get_or_start()
    return session


@pytest.fixture
def load(spark: SparkSession, bootstrap: str) -> Callable[..., DataFrame]:
    """Read with options: `load(subscribe=topic, minPartitions=4)`."""

    def load(**options: object) -> DataFrame:
        reader = spark.read.format("lograft").option("kafka.bootstrap.servers", bootstrap)
        return reader.options(**{name: str(value) for name, value in options.items()}).load()

    return load


@pytest.fixture
def save(bootstrap: str) -> Callable[..., None]:
    """Write a DataFrame: `save(rows, topic=topic)`. A name with an underscore has a dot there: `ingest_id`."""

    def save(rows: DataFrame, **options: object) -> None:
        writer = rows.write.format("lograft").mode("append").option("kafka.bootstrap.servers", bootstrap)
        writer.options(**{name.replace("_", "."): str(value) for name, value in options.items()}).save()

    return save


@pytest.fixture(scope="session")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    from brokerd.embedded import EmbeddedCluster

    directory: Path = tmp_path_factory.mktemp("cluster")
    with EmbeddedCluster(directory / "data") as cluster:
        yield cluster.bootstrap


@pytest.fixture(scope="session")
def admin(bootstrap: str) -> Iterator[Admin]:
    from lograft import Admin

    with Admin(bootstrap) as client:
        yield client


@pytest.fixture
def make_topic(admin: Admin) -> Callable[..., str]:
    """Make a topic with a new name: `make_topic(partition_count=3)`."""

    def make(partition_count: int = 3, *, prefix: str = "topic") -> str:
        topic = f"{prefix}-{uuid.uuid4().hex}"
        # The records have timestamps that are years old. Retention would remove them at its next check.
        admin.create_topic(topic, partition_count=partition_count, configs={"retention.ms": "-1"})
        return topic

    return make
