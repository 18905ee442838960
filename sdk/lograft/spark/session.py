# SPDX-License-Identifier: Apache-2.0
"""A small local Spark session that starts fast, works without an installed Java, and logs little.

This module owns settings for Spark on one machine: for tests, the demo, or a first try in a notebook. It is not for clusters.
Operators configure Spark there, and `format("lograft")` needs none of this.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lograft.spark.java import ensure_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOGGING: Final = """\
rootLogger.level = {level}
rootLogger.appenderRef.stderr.ref = stderr
# Spark raises the root level to this logger's in an interactive session, and says so.
logger.repl.name = org.apache.spark.api.python.PythonGatewayServer
logger.repl.level = {level}
appender.console.type = Console
appender.console.name = stderr
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{{yy/MM/dd HH:mm:ss}} %p %c{{1}}: %m%n%ex
"""


def local_session(
    app_name: str = "lograft",
    *,
    threads: int = 2,
    task_attempts: int = 1,
    log_level: str = "error",
    directory: str | Path | None = None,
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start Spark in this process and only on this machine, with a Java that `ensure_java` finds.

    The JVM is tuned for short jobs (first compiler tier, serial collector), listens on 127.0.0.1 and has no web
    interface.

    Args:
        app_name: name of the application.
        threads: tasks that run at the same time.
        task_attempts: how often a task may run before the job fails.
        log_level: lowest level that the JVM logs: off, error, warn, info, debug.
        directory: directory for Spark's temporary files; None makes one in the system's, and removes it when Python exits.
        settings: Spark settings that replace or extend the ones here.

    Raises:
        JavaNotFoundError: no Java 17 or later was found.
    """
    from pyspark.sql import SparkSession

    ensure_java()
    # Spark starts its Python workers with this program. Without the variable it takes "python3", which may lack the packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    home = _temporary_directory() if directory is None else Path(directory)
    chosen = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": (
            f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Djava.io.tmpdir={home} {logging_option(home, log_level)}"
        ),
        "spark.local.dir": str(home),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(threads),
        "spark.sql.warehouse.dir": str(home / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **(settings or {}),
    }
    builder = SparkSession.builder.appName(app_name).master(f"local[{threads},{task_attempts}]")
    for name, value in chosen.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def logging_option(directory: Path, level: str) -> str:
    """Return the option of a JVM that logs only from a level on, by a file that this writes into `directory`."""
    file = directory / "log4j2.properties"
    file.write_text(_LOGGING.format(level=level), encoding="utf-8")
    return f"-Dlog4j2.configurationFile={file}"


def _temporary_directory() -> Path:
    directory = Path(tempfile.mkdtemp(prefix="lograft-spark-"))
    # The JVM may still be deleting its own files there while it stops.
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory
