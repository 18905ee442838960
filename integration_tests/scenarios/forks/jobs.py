# SPDX-License-Identifier: Apache-2.0
"""A Celery application whose clients are created in the worker's main process. Its prefork pool uses a new child for each task.

The environment is that of `work.environment_of`.
"""

from __future__ import annotations

import sys
from typing import Any

import celery
from celery.signals import worker_init

from integration_tests.scenarios.forks.statuses import note_statuses
from integration_tests.scenarios.forks.work import (
    Clients,
    queue_path,
    start_clients_by_environment,
    statuses_path,
    work_by_environment,
)

_queue = queue_path()
app = celery.Celery("forks", broker="filesystem://")
app.conf.update(
    broker_transport_options={
        "data_folder_in": _queue,
        "data_folder_out": _queue,
        "control_folder": f"{_queue}-control",
        "polling_interval": 0.01,
    },
    task_ignore_result=True,
    worker_max_tasks_per_child=1,
    worker_prefetch_multiplier=8,
    worker_enable_remote_control=False,
)
_clients: Clients | None = None


@worker_init.connect
def on_start(**_others: Any) -> None:
    """Create clients in the worker's main process, before its pool is forked."""
    global _clients
    note_statuses(statuses_path())
    _clients = start_clients_by_environment()


@app.task(name="forks.job")
def job() -> None:
    """Work with the child's own clients."""
    assert _clients is not None, "the pool was forked before the clients were made"
    _clients.check_refused()
    work_by_environment()


if __name__ == "__main__":
    for _ in range(int(sys.argv[1])):
        app.send_task("forks.job")
