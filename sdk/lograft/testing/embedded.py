# SPDX-License-Identifier: Apache-2.0
"""A whole cluster in the process of the tests: the real broker and the real quorum, on a thread of their own.

Owns how the server's code is imported under pytest. `brokerd.embedded` owns the rest.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from lograft.testing.errors import require_servers


class EmbeddedCluster:
    """A cluster of one node in this process; a context manager.

    The node takes a free port of the loopback address. Several clusters in one process do not know each other. No fault can be
    brought about in it, because it is part of the test's own process: `ProcessCluster` is for that.

    Args:
        data_directory: a directory, which `stop` keeps. None: a temporary directory, which `stop` deletes.

    Raises:
        ServersMissingError: `lograft-server` is not installed.
    """

    def __init__(self, data_directory: str | Path | None = None) -> None:
        require_servers()
        with _as_written():
            module = import_module("brokerd.embedded")
        self._cluster: Any = module.EmbeddedCluster(data_directory)

    @property
    def bootstrap(self) -> str:
        """Bootstrap address for clients, on the loopback address. Raises an error before `start` and after `stop`."""
        return self._cluster.bootstrap

    def start(self) -> Self:
        """Start the cluster, wait until it serves, and return it. A cluster starts once."""
        self._cluster.start()
        return self

    def stop(self) -> None:
        """Stop the cluster and wait until its thread has ended. Idempotent."""
        self._cluster.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


@contextmanager
def _as_written() -> Generator[None]:
    """Import modules in this block without pytest's rewriting of their assertions.

    Pytest rewrites every package of a distribution that has a plugin. For the servers that costs most of a second in each run,
    and their assertions are not those of the tests. Without pytest there is nothing to put aside.
    """
    hooks = [
        each for each in sys.meta_path if type(each).__module__.startswith("_pytest.") and hasattr(each, "mark_rewrite")
    ]
    places = [(sys.meta_path.index(each), each) for each in hooks]
    for each in hooks:
        sys.meta_path.remove(each)
    try:
        yield
    finally:
        for place, each in places:
            sys.meta_path.insert(place, each)
