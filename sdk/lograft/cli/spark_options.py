# SPDX-License-Identifier: Apache-2.0
"""What the commands that run jobs in Spark share: their options, the session, and the handling of Spark's errors."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final

import typer

from lograft.admin import Admin
from lograft.cli.options import parse_pairs
from lograft.errors import UnknownTopicError
from lograft.types import TopicDescription

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG_LEVELS: Final = ("off", "error", "warn", "info", "debug")

Master = Annotated[
    str | None,
    typer.Option(
        "--master",
        envvar="LOGRAFT_SPARK_MASTER",
        help="URL of Spark's master, such as spark://host:7077, yarn, k8s://https://host:6443 or local[4]; default: this machine.",
    ),
]
Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="NAME=VALUE", help="Setting of Spark; may be repeated."),
]
SparkLog = Annotated[
    str, typer.Option("--spark-log", metavar="LEVEL", help=f"What Spark logs: {', '.join(LOG_LEVELS)}.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Write nothing; show what would be done.")]


@contextmanager
def spark_session(
    name: str, *, master: str | None, conf: Sequence[str] | None, log_level: str
) -> Generator[SparkSession]:
    """Start Spark for the block, and stop it after that. Errors of Spark come out as `LograftError`.

    Raises:
        MissingExtraError: PySpark or Java is not installed.
        LograftError: Spark does not start, or a job failed.
    """
    from lograft.spark.jobs.failures import explained
    from lograft.spark.jobs.session import job_session, remove_directory, temporary_directory

    if log_level not in LOG_LEVELS:
        raise typer.BadParameter(f"{log_level!r} is not one of {', '.join(LOG_LEVELS)}", param_hint="--spark-log")
    settings = dict(parse_pairs(conf or [], "--conf"))
    directory = temporary_directory()
    try:
        spark = job_session(name, master=master, settings=settings, log_level=log_level, directory=directory)
        try:
            yield spark
        finally:
            spark.stop()
    except Exception as error:
        found = explained(error)
        raise found from (None if found is not error else error.__cause__)
    finally:
        remove_directory(directory)


def describe_topic(admin: Admin, topic: str) -> TopicDescription:
    """Return the description of a topic.

    Raises:
        UnknownTopicError: there is none; the message says how to make it.
    """
    try:
        return admin.describe_topic(topic)
    except UnknownTopicError:
        raise UnknownTopicError(
            f"there is no topic {topic!r}: lograft topics create {topic} --partitions 6; "
            "with --config retention.ms=-1 for records of the past"
        ) from None
