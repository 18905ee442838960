# SPDX-License-Identifier: Apache-2.0
"""A Spark program of COUNT tasks, each with a new Python worker: `python -m integration_tests.scenarios.forks.spark_driver COUNT`.

The driver has working clients, and so has the daemon that forks the workers. The environment is that of `work.environment_of`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from lograft.spark import local_session

from integration_tests.scenarios.forks.work import start_clients_by_environment, work_by_environment


def task(_items: Iterator[int]) -> None:
    """Work with the worker's own clients."""
    work_by_environment()


def main() -> int:
    """Run the tasks."""
    count = int(sys.argv[1])
    clients = start_clients_by_environment()
    settings = {
        "spark.python.worker.reuse": "false",
        "spark.python.use.daemon": "true",
        "spark.python.daemon.module": "integration_tests.scenarios.forks.spark_daemon",
    }
    session = local_session("forks", settings=settings)
    session.sparkContext.parallelize(range(count), count).foreachPartition(task)
    session.stop()
    clients.stop()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
