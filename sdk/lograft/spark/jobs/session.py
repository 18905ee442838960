# SPDX-License-Identifier: Apache-2.0
"""The Spark session of a ready job: on this machine, or on any cluster of Spark.

On this machine it is that of `local_session`. On a cluster nothing is set but the name, the time zone and a quiet log: the
operators of the cluster, and `--conf`, say the rest.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lograft.errors import MissingExtraError
from lograft.spark.java import ensure_java, start_script

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASK_ATTEMPTS: Final = 4
"""How often a task may run on this machine before the job fails; Spark's default on clusters."""


def require_spark() -> None:
    """Check that PySpark is installed, without loading it.

    Raises:
        MissingExtraError: it is not.
    """
    if missing := [name for name in ("pyspark", "pyarrow", "pandas") if find_spec(name) is None]:
        raise MissingExtraError(
            f"the job runs in Spark, and {missing[0]} is not installed: pip install 'lograft[spark]'; "
            "without Java 17 on this machine: pip install 'lograft[spark,jre]'"
        )


def job_session(
    name: str, *, master: str | None, settings: Mapping[str, str], log_level: str, directory: Path
) -> SparkSession:
    """Start the session of a job.

    Args:
        name: name of the application.
        master: URL of Spark's master; None: all cores of this machine.
        settings: Spark settings that replace or extend those here.
        log_level: lowest level that the JVM logs: off, error, warn, info, debug.
        directory: directory for temporary files.

    Raises:
        JavaNotFoundError: no Java 17 or later was found.
    """
    from lograft.spark.session import local_session, logging_option

    use_quiet_java(directory)
    url = f"local[*,{TASK_ATTEMPTS}]" if master is None else master
    if url.startswith("local-cluster"):
        use_own_work_directory(directory)
    if url.startswith("local"):
        cores = os.cpu_count() or 1
        return local_session(
            name,
            threads=cores,
            log_level=log_level,
            directory=directory,
            settings={"spark.master": url, **_worker_settings(url), **settings},
        )
    from pyspark.sql import SparkSession

    chosen = {
        "spark.driver.extraJavaOptions": logging_option(directory, log_level),
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.showConsoleProgress": "false",
        **settings,
    }
    builder = SparkSession.builder.appName(name).master(url)
    for each, value in chosen.items():
        builder = builder.config(each, value)
    return builder.getOrCreate()


def use_quiet_java(directory: Path) -> None:
    """Find a Java, and let it say nothing by itself.

    Spark asks for a module that Java calls an incubator, and each JVM warns of that on standard error. Spark works without it. So
    `JAVA_HOME` becomes a directory below `directory`, with a script that drops the request.

    Raises:
        JavaNotFoundError: no Java 17 or later was found.
    """
    java = ensure_java().home / "bin" / "java"
    script = directory / "java" / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text(start_script(java), encoding="utf-8")
    script.chmod(0o755)
    os.environ["JAVA_HOME"] = str(directory / "java")


def use_own_work_directory(directory: Path) -> None:
    """Let the executors of a local cluster write below `directory`, and not into the installed package.

    Spark takes `SPARK_HOME/work` for them, and says no other way. So `SPARK_HOME` becomes a directory of links. A home that the user
    has set stays.
    """
    spec = find_spec("pyspark")
    if os.environ.get("SPARK_HOME") or spec is None or spec.origin is None:
        return
    home = directory / "spark-home"
    home.mkdir()
    for each in Path(spec.origin).parent.iterdir():
        if each.name != "work":
            (home / each.name).symlink_to(each)
    os.environ["SPARK_HOME"] = str(home)


def temporary_directory() -> Path:
    """Make a directory for a job; `remove_directory` takes it away."""
    return Path(tempfile.mkdtemp(prefix="lograft-job-"))


def remove_directory(directory: Path) -> None:
    """Take away a job's directory. The JVM may still be deleting its own files in it."""
    shutil.rmtree(directory, ignore_errors=True)


def _worker_settings(url: str) -> dict[str, str]:
    """Let the Python of executors in other processes find what this one has imported."""
    if not url.startswith("local-cluster"):
        return {}
    return {"spark.executorEnv.PYTHONPATH": os.pathsep.join(each for each in sys.path if each)}
