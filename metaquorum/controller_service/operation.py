# SPDX-License-Identifier: Apache-2.0
"""The kinds of admin operations: how the active controller carries out a request of `lograft.v1.AdminService`.

Owns what all operations of a kind share: a change waits for its commit and answers with the metadata offset, a query waits until the
image has all that is committed. `admin_operations.py` has the table; the modules by subject translate requests and answers.
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
        """Wait until the image may be shown: it has all that is committed, and what the request asks for.

        Raises:
            CommandError: as `ControllerHost.wait_for_everything`.
        """
        await self.host.wait_for_everything(timeout_ms=timeout_ms)
        if request.HasField("min_metadata_offset"):
            least: int = cast("Any", request).min_metadata_offset
            await self.host.wait_for_offset(least, timeout_ms=timeout_ms)


@dataclass(frozen=True, slots=True)
class Change(Generic[RequestT, ResultT]):
    """A command of the controller. The answer has the metadata offset of the commit; 0 where the request only checks.

    Attributes:
        command: makes the command of a request; raises `CommandError` where the request is none.
        result: what the core answers to that command.
        answer: makes the answer, without its metadata offset.
    """

    changes: ClassVar[bool] = True

    command: Callable[[RequestT, Member], Command]
    result: type[ResultT]
    answer: Callable[[RequestT, ResultT], Message]

    async def carry_out(self, request: RequestT, member: Member, timeout_ms: int) -> Message:
        """Submit the command, and answer when it is committed; raises `CommandError`."""
        outcome = await member.host.submit(self.command(request, member), timeout_ms=timeout_ms)
        assert isinstance(outcome.response, self.result), f"unexpected {outcome.response}"
        answer = self.answer(request, outcome.response)
        if not getattr(request, "validate_only", False):
            cast("Any", answer).metadata_offset = outcome.metadata_offset
        return answer


def plain(response: type[Message]) -> Callable[[Message, Done], Message]:
    """Return the `answer` of a change that has nothing to say but its metadata offset."""
    return lambda _request, _done: response()


@dataclass(frozen=True, slots=True)
class Query(Generic[RequestT]):
    """A question that the committed image answers, and nothing else.

    Attributes:
        answer: makes the answer from an image that is as new as the request asks for; raises `CommandError`.
    """

    changes: ClassVar[bool] = False

    answer: Callable[[RequestT, MetadataImage], Message]

    async def carry_out(self, request: RequestT, member: Member, timeout_ms: int) -> Message:
        """Answer from the image when it has all that was committed when the question came; raises `CommandError`."""
        await member.catch_up(request, timeout_ms)
        return self.answer(request, member.host.image)


@dataclass(frozen=True, slots=True)
class Call(Generic[RequestT]):
    """An operation of the quorum itself, or of several commands.

    Attributes:
        carry_out: a request, the member, milliseconds that it may take; raises `CommandError`.
        changes: True when it changes something, so that it must not be repeated without a thought.
    """

    carry_out: Callable[[RequestT, Member, int], Awaitable[Message]]
    changes: bool


@dataclass(frozen=True, slots=True)
class OfBroker:
    """An operation of the broker that is asked; the controller refuses it."""


@dataclass(frozen=True, slots=True)
class Export:
    """The stream of the metadata; its transports serve it beside the operations that have one answer."""


Operation = Change[Any, Any] | Query[Any] | Call[Any] | OfBroker | Export
