# SPDX-License-Identifier: Apache-2.0
"""PySpark's daemon, which forks Spark's Python workers, with clients created in it first (`spark.python.daemon.module`).

The environment is that of `work.environment_of`. The daemon itself ignores how its workers end; this module notes it.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import Any

from pyspark import daemon

from integration_tests.scenarios.forks.statuses import note_statuses
from integration_tests.scenarios.forks.work import start_clients_by_environment, statuses_path

_set_handler = signal.signal


def _reap(*_arguments: Any) -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _handle(number: int, handler: Any) -> Any:
    is_ignored = number == signal.SIGCHLD and handler == signal.SIG_IGN
    return _set_handler(number, _reap if is_ignored else handler)


if __name__ == "__main__":
    note_statuses(statuses_path())
    signal.signal = _handle
    clients = start_clients_by_environment()
    daemon.manager()
