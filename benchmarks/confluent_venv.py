# SPDX-License-Identifier: Apache-2.0
"""confluent-kafka as a peer of the benchmarks: pip installs it once, into an environment of its own beside the jars of Kafka.

Nothing of it is a dependency of the project.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.kafka_server import FETCH_TIMEOUT_S, bench_cache

CONFLUENT_VERSION = "2.16.1"


def confluent_python() -> Path:
    """Return the Python of an environment that has confluent-kafka, made once."""
    directory = bench_cache() / f"confluent-kafka-{CONFLUENT_VERSION}"
    python = directory / "bin" / "python"
    if not python.exists():
        # An environment cannot be moved, so an incomplete one is made again.
        shutil.rmtree(directory, ignore_errors=True)
        print(f"installing confluent-kafka {CONFLUENT_VERSION} with pip", flush=True)
        try:
            _run([sys.executable, "-m", "venv", str(directory)])
            _run([str(python), "-m", "pip", "install", "--quiet", f"confluent-kafka=={CONFLUENT_VERSION}"])
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise
    return python


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, timeout=FETCH_TIMEOUT_S)
