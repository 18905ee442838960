# SPDX-License-Identifier: Apache-2.0
"""A web application for gunicorn whose clients are created in the master, and gunicorn's settings for it.

The environment is that of `work.environment_of`. Every worker serves one request and ends. Then the master forks the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from integration_tests.scenarios.forks.statuses import note_statuses
from integration_tests.scenarios.forks.work import (
    Clients,
    start_clients_by_environment,
    statuses_path,
    work_by_environment,
)

preload_app = True
workers = 2
max_requests = 1
loglevel = "error"
graceful_timeout = 60
timeout = 120
_clients: Clients | None = None


def on_starting(_server: Any) -> None:
    """Note the exit statuses of workers."""
    note_statuses(statuses_path())


def master_clients() -> Clients:
    """Return the clients of the master."""
    global _clients
    if _clients is None:
        _clients = start_clients_by_environment()
    return _clients


def application(_environment: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Serve a request with the worker's own clients."""
    master_clients().check_refused()
    work_by_environment()
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"done"]


# This module is both the settings and the application. The master loads it before it forks.
master_clients()
