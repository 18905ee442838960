# SPDX-License-Identifier: Apache-2.0
"""Runs a broker whose groups have a shorter session: `python -m integration_tests.scenarios.group_proofs.session MS brokerd run ...`.

Groups have no configs of their own yet, and with the default session of 45 s a short proof would see no member expire.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Sequence

from brokerd.groups import core
from brokerd.groups.limits import DEFAULT_HEARTBEAT_INTERVAL_MS
from brokerd.groups.settings import GroupConfig


def with_session(session_ms: int) -> Callable[[str], Sequence[str]]:
    """Return the launcher of a `Cluster` whose brokers give groups a session of so many milliseconds."""
    module = "integration_tests.scenarios.group_proofs.session"
    return lambda name: (module, str(session_ms)) if name.startswith("broker-") else ()


def main() -> None:
    """Change the default and run the module."""
    session_ms, module = int(sys.argv[1]), sys.argv[2]
    heartbeat_ms = min(DEFAULT_HEARTBEAT_INTERVAL_MS, session_ms // 3)
    core.GroupConfig = lambda: GroupConfig(session_timeout_ms=session_ms, heartbeat_interval_ms=heartbeat_ms)
    sys.argv = sys.argv[2:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
