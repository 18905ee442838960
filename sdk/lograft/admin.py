# SPDX-License-Identifier: Apache-2.0
"""The blocking admin client.

It passes each call to an asyncio admin client on the background event loop. `lograft._admin` has the docstrings of the calls of
both.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar

from lograft._admin.calls import document
from lograft._client.forks import on_fork
from lograft._client.immortal import keep_for_ever
from lograft._client.runtime import STOP_TIMEOUT_S, acquire_runtime, on_exit, release_runtime
from lograft._client.usable import unusable_error
from lograft.aio.admin import Admin as AsyncAdmin
from lograft.settings import CONNECTION_LIVENESS_MS, REQUEST_TIMEOUT_MS

if TYPE_CHECKING:
    from lograft._client.background_loop import Runtime

P = ParamSpec("P")
T = TypeVar("T")


def _blocking(
    verb: Callable[Concatenate[AsyncAdmin, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Admin, P], T]:
    """Return a method of the asyncio client as a blocking method."""

    def method(self: Admin, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._run(lambda admin: verb(admin, *args, **kwargs))  # pyright: ignore[reportPrivateUsage]

    return document(method, verb)


class Admin:
    """Manages topics, configs, groups, ingests, brokers, partitions and the quorum. Any number of threads may use it.

    Args:
        bootstrap: brokers to ask first: "host:port", several separated by commas, or a list.
        cluster_id: the id that the cluster must have; None accepts any cluster.
        connection_liveness_ms: milliseconds without a byte from the broker after which a connection has failed, 4,000 to
            60,000.
        request_timeout_ms: milliseconds that a call may take, all attempts together, 1 to 3,600,000.
        client_id: name of the program for operators, 1 to 249 letters, digits, dots, underscores and hyphens. Brokers get it at
            the front of gRPC's user agent.

    Raises:
        InvalidSettingError: a setting is out of range.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        cluster_id: str | None = None,
        request_timeout_ms: int = REQUEST_TIMEOUT_MS,
        connection_liveness_ms: int = CONNECTION_LIVENESS_MS,
        client_id: str | None = None,
    ) -> None:
        self._admin = AsyncAdmin(
            bootstrap,
            cluster_id=cluster_id,
            request_timeout_ms=request_timeout_ms,
            connection_liveness_ms=connection_liveness_ms,
            client_id=client_id,
        )
        self._lock = threading.Lock()
        self._is_closed = False
        self._is_forked = False
        self._runtime: Runtime | None = None
        on_fork(self, Admin._after_fork)
        on_exit(self, Admin._leave)

    create_topic: Final = _blocking(AsyncAdmin.create_topic)
    create_topics: Final = _blocking(AsyncAdmin.create_topics)
    create_partitions: Final = _blocking(AsyncAdmin.create_partitions)
    delete_topic: Final = _blocking(AsyncAdmin.delete_topic)
    list_topics: Final = _blocking(AsyncAdmin.list_topics)
    describe_topic: Final = _blocking(AsyncAdmin.describe_topic)
    alter_configs: Final = _blocking(AsyncAdmin.alter_configs)
    describe_configs: Final = _blocking(AsyncAdmin.describe_configs)
    describe_feature_level: Final = _blocking(AsyncAdmin.describe_feature_level)
    update_feature_level: Final = _blocking(AsyncAdmin.update_feature_level)
    elect_leaders: Final = _blocking(AsyncAdmin.elect_leaders)
    alter_partition_reassignments: Final = _blocking(AsyncAdmin.alter_partition_reassignments)
    list_partition_reassignments: Final = _blocking(AsyncAdmin.list_partition_reassignments)
    describe_cluster: Final = _blocking(AsyncAdmin.describe_cluster)
    describe_brokers: Final = _blocking(AsyncAdmin.describe_brokers)
    remove_broker: Final = _blocking(AsyncAdmin.remove_broker)
    describe_quorum: Final = _blocking(AsyncAdmin.describe_quorum)
    add_voter: Final = _blocking(AsyncAdmin.add_voter)
    remove_voter: Final = _blocking(AsyncAdmin.remove_voter)
    replace_voter: Final = _blocking(AsyncAdmin.replace_voter)
    transfer_leadership: Final = _blocking(AsyncAdmin.transfer_leadership)
    export_metadata: Final = _blocking(AsyncAdmin.export_metadata)
    describe_log_directories: Final = _blocking(AsyncAdmin.describe_log_directories)
    move_replica: Final = _blocking(AsyncAdmin.move_replica)
    delete_unknown_partitions: Final = _blocking(AsyncAdmin.delete_unknown_partitions)
    list_offsets: Final = _blocking(AsyncAdmin.list_offsets)
    delete_records: Final = _blocking(AsyncAdmin.delete_records)
    describe_producers: Final = _blocking(AsyncAdmin.describe_producers)
    list_groups: Final = _blocking(AsyncAdmin.list_groups)
    describe_groups: Final = _blocking(AsyncAdmin.describe_groups)
    delete_groups: Final = _blocking(AsyncAdmin.delete_groups)
    group_offsets: Final = _blocking(AsyncAdmin.group_offsets)
    alter_group_offsets: Final = _blocking(AsyncAdmin.alter_group_offsets)
    reset_group_offsets: Final = _blocking(AsyncAdmin.reset_group_offsets)
    delete_group_offsets: Final = _blocking(AsyncAdmin.delete_group_offsets)
    list_ingests: Final = _blocking(AsyncAdmin.list_ingests)
    describe_ingest: Final = _blocking(AsyncAdmin.describe_ingest)
    abort_ingest: Final = _blocking(AsyncAdmin.abort_ingest)

    def close(self) -> None:
        """Close the connections. Further calls do nothing."""
        with self._lock:
            if self._is_closed or self._is_forked:
                return
            self._is_closed = True
            runtime = self._runtime
        if runtime is not None:
            try:
                runtime.run(self._admin.close())
            finally:
                release_runtime(runtime)

    def _leave(self, started_s: float) -> None:
        """Close the connections at the end of the process."""
        del started_s
        runtime = self._runtime
        if runtime is not None and not self._is_closed and not self._is_forked:
            with suppress(TimeoutError):
                runtime.run(self._admin.close(), timeout_s=STOP_TIMEOUT_S)

    def __enter__(self) -> Admin:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, work: Callable[[AsyncAdmin], Coroutine[Any, Any, T]]) -> T:
        with self._lock:
            if self._is_closed or self._is_forked:
                raise unusable_error("admin client", is_forked=self._is_forked)
            if self._runtime is None:
                self._runtime = acquire_runtime()
            runtime = self._runtime
        return runtime.run(work(self._admin))

    def _after_fork(self) -> None:
        """Make every later call raise `ForkedClientError`. Runs in the forked child."""
        self._lock = threading.Lock()
        self._is_forked = True
        keep_for_ever(self._runtime)
        self._runtime = None
