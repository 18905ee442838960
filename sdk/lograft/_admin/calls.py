# SPDX-License-Identifier: Apache-2.0
"""The common base of the admin calls: the cluster, and the time that one call may take.

An admin call is a coroutine function `verb(calls, ...)` in the module of its subject. It has the name of its RPC. Both clients
take its signature and docstring, and have one line for it (ADR 20).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from google.protobuf.message import Message

from lograft._client.clock import monotonic_ms
from lograft._client.stubs import admin_service

if TYPE_CHECKING:
    import grpc.aio

    from lograft._client.cluster import Cluster
    from lograft._groups.coordinators import Coordinators
    from lograft._ingests.coordinators import IngestCoordinators

    # Only the stubs for type checkers have this class.
    from lograft.v1.admin_pb2_grpc import AdminServiceAsyncStub

Q = TypeVar("Q", bound=Message)
T = TypeVar("T")
M = TypeVar("M", bound=Callable[..., object])


@dataclass(frozen=True, slots=True)
class AdminCalls:
    """What each admin call gets as its first argument.

    Attributes:
        cluster: the connection to the cluster.
        coordinators: the coordinators of groups.
        timeout_ms: milliseconds that a call may take, all attempts together.
    """

    cluster: Cluster
    coordinators: Coordinators
    timeout_ms: int

    def ingest_coordinators(self) -> IngestCoordinators:
        """Return the coordinators of ingests; the next call finds them anew."""
        from lograft._ingests.coordinators import IngestCoordinators

        return IngestCoordinators(self.cluster)

    def until(self, deadline_ms: int) -> AdminCalls:
        """Return the calls with the milliseconds that are left until a monotonic time, at least 1."""
        return replace(self, timeout_ms=max(1, deadline_ms - monotonic_ms()))

    async def ask(
        self,
        method: Callable[[AdminServiceAsyncStub], grpc.aio.UnaryUnaryMultiCallable[Q, T]],
        request: Q,
        *,
        may_repeat: bool = True,
        address: str | None = None,
    ) -> T:
        """Send a request with the cluster id and return its answer.

        Args:
            method: returns the method of the service.
            request: the request.
            may_repeat: False if the request must not be sent again after a lost answer: the change could happen twice, or be
                refused the second time.
            address: "host:port" of the only broker to ask; None asks any broker.

        Raises:
            LograftError: a server refused the request, or no answer came in time.
        """
        cast("Any", request).cluster_id = self.cluster.cluster_id
        return await self.cluster.ask(
            lambda channel: method(admin_service(channel)),
            request,
            timeout_ms=self.timeout_ms,
            may_repeat=may_repeat,
            address=address,
        )


def document(method: M, verb: Callable[..., object]) -> M:
    """Give a client's method the name, docstring and signature of its admin call."""
    functools.update_wrapper(method, verb)
    signature = inspect.signature(verb)
    _, *parameters = signature.parameters.values()
    this = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    cast("Any", method).__signature__ = signature.replace(parameters=[this, *parameters])
    return method
