# SPDX-License-Identifier: Apache-2.0
"""The kinds of admin operations: how the active controller carries out a request of `lograft.v1.AdminService`.

Owns the common behaviour of each kind: a change waits for its commit and answers with the metadata offset; a query waits until the
image has everything committed. `admin_operations.py` has the table; the modules by subject translate requests and answers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar, cast

from google.protobuf.message import Message

from metaquorum.controller.commands import Command, Done
from metaquorum.controller_service.controller_host import ControllerHost
from metaquorum.metadata.image import MetadataImage
from metaquorum.replica.quorum_node import QuorumNode

RequestT = TypeVar("RequestT", bound=Message)
ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class Member:
    """The quorum member that carries out an operation.

    Attributes:
        host: its controller.
        node: its quorum node.
    """

    host: ControllerHost
    node: QuorumNode

    async def catch_up(self, request: Message, timeout_ms: int) -> None:
        """Wait until the image has everything committed, and the metadata offset that the request asks for.

        Raises:
            CommandError: as `ControllerHost.wait_for_everything`.
        """
        await self.host.wait_for_everything(timeout_ms=timeout_ms)
        if request.HasField("min_metadata_offset"):
            least: int = cast("Any", request).min_metadata_offset
            await self.host.wait_for_offset(least, timeout_ms=timeout_ms)


@dataclass(frozen=True, slots=True)
class Change(Generic[RequestT, ResultT]):
    """A command of the controller. The answer has the metadata offset of the commit; 0 if the request only validates.

    Attributes:
        command: makes the command of a request; raises `CommandError` if the request is invalid.
        result: type of the core's response to the command.
        answer: makes the answer, without its metadata offset.
    """

    changes: ClassVar[bool] = True

    command: Callable[[RequestT, Member], Command]
    result: type[ResultT]
    answer: Callable[[RequestT, ResultT], Message]

    async def carry_out(self, request: RequestT, member: Member, timeout_ms: int) -> Message:
        """Submit the command, and answer once it is committed. Raises `CommandError`."""
        outcome = await member.host.submit(self.command(request, member), timeout_ms=timeout_ms)
        assert isinstance(outcome.response, self.result), f"unexpected {outcome.response}"
        answer = self.answer(request, outcome.response)
        if not getattr(request, "validate_only", False):
            cast("Any", answer).metadata_offset = outcome.metadata_offset
        return answer


def plain(response: type[Message]) -> Callable[[Message, Done], Message]:
    """Return the `answer` of a change whose response has only a metadata offset."""
    return lambda _request, _done: response()


@dataclass(frozen=True, slots=True)
class Query(Generic[RequestT]):
    """A question that the committed image alone answers.

    Attributes:
        answer: makes the answer from a sufficiently new image; raises `CommandError`.
    """

    changes: ClassVar[bool] = False

    answer: Callable[[RequestT, MetadataImage], Message]

    async def carry_out(self, request: RequestT, member: Member, timeout_ms: int) -> Message:
        """Answer once the image has everything that was committed when the question arrived. Raises `CommandError`."""
        await member.catch_up(request, timeout_ms)
        return self.answer(request, member.host.image)


@dataclass(frozen=True, slots=True)
class Call(Generic[RequestT]):
    """An operation of the quorum itself, or of several commands.

    Attributes:
        carry_out: takes the request, the member, and the milliseconds that it may take; raises `CommandError`.
        changes: True if the operation changes something, so that a caller must not repeat it blindly.
    """

    carry_out: Callable[[RequestT, Member, int], Awaitable[Message]]
    changes: bool


@dataclass(frozen=True, slots=True)
class OfBroker:
    """An operation that a broker carries out itself; the controller refuses it."""


@dataclass(frozen=True, slots=True)
class Export:
    """The stream of an export. Transports serve it apart from the operations with one answer."""


Operation = Change[Any, Any] | Query[Any] | Call[Any] | OfBroker | Export
