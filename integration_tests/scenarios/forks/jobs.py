# SPDX-License-Identifier: Apache-2.0
"""An application of Celery whose clients are made in the worker's main process; its prefork pool takes a new child for each task.

Environment: as `web`, and FORKS_QUEUE (directory of the queue).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import celery
from celery.signals import worker_init

from integration_tests.scenarios.forks.statuses import note_statuses
from integration_tests.scenarios.forks.work import Clients, start_clients, work

_queue = os.environ["FORKS_QUEUE"]
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
    """Make clients in the worker's main process, before its pool is forked."""
    global _clients
    environment = os.environ
    note_statuses(Path(environment["FORKS_STATUSES"]))
    is_busy = environment["FORKS_LOAD"] == "busy"
    _clients = start_clients("blocking", environment["FORKS_BOOTSTRAP"], environment["FORKS_TOPIC"], is_busy=is_busy)


@app.task(name="forks.job")
def job() -> None:
    """Work with clients of the child's own."""
    assert _clients is not None, "the pool was forked before the clients were made"
    _clients.check_refused()
    work("blocking", os.environ["FORKS_BOOTSTRAP"], os.environ["FORKS_TOPIC"])


if __name__ == "__main__":
    for _ in range(int(sys.argv[1])):
        app.send_task("forks.job")
