# SPDX-License-Identifier: Apache-2.0
"""What every verb of the admin clients gets: the cluster, and the time that one call may take.

A verb is a coroutine function `verb(calls, ...)` in the module of its subject. It has the name of its RPC, and its signature and
docstring are those of the clients: each client has one line for it (ADR 20).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

import grpc.aio
from google.protobuf.message import Message

from lograft._client.cluster import Cluster
from lograft.v1.admin_pb2_grpc import AdminServiceStub

if TYPE_CHECKING:
    # Only the stubs for type checkers have it.
    from lograft.v1.admin_pb2_grpc import AdminServiceAsyncStub

Q = TypeVar("Q", bound=Message)
T = TypeVar("T")
M = TypeVar("M", bound=Callable[..., object])


@dataclass(frozen=True, slots=True)
class AdminCalls:
    """The way to the cluster.

    Attributes:
        cluster: connections to the cluster.
        timeout_ms: milliseconds that a call may take, all tries together.
    """

    cluster: Cluster
    timeout_ms: int

    async def ask(
        self,
        method: Callable[[AdminServiceAsyncStub], grpc.aio.UnaryUnaryMultiCallable[Q, T]],
        request: Q,
        *,
        may_repeat: bool = True,
        address: str | None = None,
    ) -> T:
        """Send one request, which gets the cluster id here, and return its answer.

        Args:
            method: gives the method of the service.
            request: the request.
            may_repeat: False: it is not sent again when its answer was lost, because the change could be made twice or look refused.
            address: the broker to ask, as "host:port"; None: any.

        Raises:
            LograftError: refused, or no answer came in time.
        """
        cast("Any", request).cluster_id = self.cluster.cluster_id
        return await self.cluster.ask(
            lambda channel: method(AdminServiceStub(channel)),
            request,
            timeout_ms=self.timeout_ms,
            may_repeat=may_repeat,
            address=address,
        )


def document(method: M, verb: Callable[..., object]) -> M:
    """Give a method of a client the name, docstring and signature of its verb."""
    functools.update_wrapper(method, verb)
    signature = inspect.signature(verb)
    _, *parameters = signature.parameters.values()
    this = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    cast("Any", method).__signature__ = signature.replace(parameters=[this, *parameters])
    return method
