# SPDX-License-Identifier: Apache-2.0
"""The connections of one server to others: dialled at the first request, shared by all callers, dialled again after they end.

Owns the map from addresses to connections, and the callers that wait for a connection. Does not know what the messages mean.
Everything runs on the event loop.

Laws: each caller gets exactly one outcome; `NotSentError` means that nothing was sent; at most one attempt to connect to an address
is under way; after a failed attempt, no new one to that address starts for `REDIAL_MS`.
Source: docs/net.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from lograft.wire.codes import ErrorCode

from metaquorum.net.connection import BusyError, Limits
from metaquorum.net.frames import BadFrameError
from metaquorum.net.hello import Identity, MisfitError, checked
from metaquorum.net.link import CallError, Link, OnOutcome, Services, Stream

logger = logging.getLogger(__name__)

DIAL_MS: Final = 1_000
"""Milliseconds for one attempt to connect, HELLO included."""

REDIAL_MS: Final = 100
"""Milliseconds after a failed attempt during which all requests to that address fail at once."""

SPARE_SWEEP_MS: Final = 30_000
"""Milliseconds between two searches for second connections to one server. This side leaves them, and closes them without open calls."""

MAX_ACCEPTED: Final = 1_000
"""Connections that other servers may have dialled. A further one is closed at once."""

MAX_WAITING: Final = 10_000
"""Requests that may wait for a connection to one address. Further ones fail at once."""


class NotSentError(CallError):
    """Nothing was sent: no connection, the wrong server at the address, or too many calls under way.

    Attributes:
        is_refused: True if no process listens at the address: the server's process is gone.
        misfit: why the server that answers there is the wrong one (another cluster, another node); None if none answers.
    """

    def __init__(self, reason: str, *, is_refused: bool = False, misfit: MisfitError | None = None) -> None:
        super().__init__(reason)
        self.is_refused = is_refused
        self.misfit = misfit


@dataclass(slots=True, eq=False)
class _Waiting:
    """A caller that waits for a connection. `tell` runs exactly once: with the connection, or with the reason for none."""

    node_id: int | None
    tell: Callable[[Link | NotSentError], None]
    timer: asyncio.TimerHandle | None = None


class Peers:
    """Dials other servers, accepts their connections, and sends requests over them.

    Args:
        identity: this server.
        services: the methods that it answers, on connections that either side dialled.
        limits: bounds of a connection.
    """

    def __init__(self, identity: Identity, services: Services, *, limits: Limits | None = None) -> None:
        self._identity = identity
        self._services = services
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._links: dict[str, Link] = {}
        # A dictionary instead of a set keeps the order of the links, so that a simulated run can be repeated.
        self._all: dict[Link, None] = {}
        self._who: dict[Link, Identity] = {}
        # Second connections on which this side has sent GOODBYE.
        self._leaving: set[Link] = set()
        self._accepted_count = 0
        self._dialling: dict[str, asyncio.Task[None]] = {}
        self._waiting: dict[str, list[_Waiting]] = {}
        # The last failed attempt of each address, kept for `REDIAL_MS`.
        self._failed: dict[str, NotSentError] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self._is_closed = False

    def request(
        self,
        address: str,
        method: int,
        message: bytes,
        *,
        timeout_ms: int,
        on_outcome: OnOutcome,
        node_id: int | None = None,
    ) -> None:
        """Send a request to the server at an address. `on_outcome` runs exactly once, after this method has returned.

        Args:
            address: `host:port`.
            method: number of the method.
            message: the request.
            timeout_ms: milliseconds for everything, the connection included.
            on_outcome: gets the response or the `CallError`.
            node_id: the node that must answer there; None: any node of the cluster.
        """
        started_s = self._loop.time()

        def tell(link: Link | NotSentError) -> None:
            if isinstance(link, NotSentError):
                on_outcome(link)
                return
            left_ms = timeout_ms - int((self._loop.time() - started_s) * 1000)
            try:
                link.request(method, message, timeout_ms=left_ms, on_outcome=on_outcome)
            except BusyError as error:
                # Later, like every outcome: the caller may be in the middle of a change of its own state.
                self._loop.call_soon(on_outcome, NotSentError(f"{address}: {error}"))

        self._with_link(address, node_id, timeout_ms, tell)

    async def ask(
        self, address: str, method: int, message: bytes, *, timeout_ms: int, node_id: int | None = None
    ) -> bytes:
        """Send a request to the server at an address and return its response; see `request`.

        Raises:
            NotSentError: nothing was sent.
            RefusedByPeerError: the other side refuses.
            UnansweredError: no answer came; the other side may have carried the request out.
        """
        link = await self.connected(address, timeout_ms=timeout_ms, node_id=node_id)
        try:
            return await link.ask(method, message, timeout_ms=timeout_ms)
        except BusyError as error:
            raise NotSentError(f"{address}: {error}") from error

    async def open(
        self,
        address: str,
        method: int,
        message: bytes,
        *,
        window_bytes: int,
        timeout_ms: int,
        node_id: int | None = None,
    ) -> Stream:
        """Open a stream to the server at an address; see `Link.open`.

        Raises:
            NotSentError: nothing was sent.
        """
        link = await self.connected(address, timeout_ms=timeout_ms, node_id=node_id)
        try:
            return link.open(method, message, window_bytes=window_bytes)
        except BusyError as error:
            raise NotSentError(f"{address}: {error}") from error

    async def connected(self, address: str, *, timeout_ms: int, node_id: int | None = None) -> Link:
        """Return a connection to an address. Dials if none exists.

        Raises:
            NotSentError: there was no connection in time.
        """
        future: asyncio.Future[Link | NotSentError] = self._loop.create_future()

        def tell(link: Link | NotSentError) -> None:
            if not future.done():
                future.set_result(link)

        self._with_link(address, node_id, timeout_ms, tell)
        found = await future
        if isinstance(found, NotSentError):
            raise found
        return found

    def accept(self) -> asyncio.Protocol:
        """Return the protocol for a connection that another server dialled; a factory for `create_server`."""
        link = self._new_link(is_dialler=False, on_who=self._adopt)
        self._accepted_count += 1
        if self._is_closed or self._accepted_count > MAX_ACCEPTED:
            link.greeted.add_done_callback(lambda _: link.close(b""))
        return link

    async def close(self, goodbye: bytes = b"") -> None:
        """Close every connection. Waiting callers get an error. Idempotent."""
        self._is_closed = True
        if self._sweep is not None:
            self._sweep.cancel()
        tasks = list(self._dialling.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for address in list(self._waiting):
            self._tell_waiting(address, NotSentError("this server stops"))
        links = list(self._all)
        for link in links:
            link.close(goodbye)
        await asyncio.gather(*(link.closed for link in links))

    def _with_link(
        self, address: str, node_id: int | None, timeout_ms: int, tell: Callable[[Link | NotSentError], None]
    ) -> None:
        link = self._usable(address)
        if link is not None:
            found = self._fitting(address, link, node_id)
            if found is link:
                tell(found)
            else:
                self._loop.call_soon(tell, found)
            return
        if self._is_closed or len(self._waiting.get(address, ())) >= MAX_WAITING:
            self._loop.call_soon(tell, NotSentError("this server stops" if self._is_closed else "too many wait"))
            return
        failed = self._failed.get(address)
        if failed is not None:
            self._loop.call_soon(tell, failed)
            return
        entry = _Waiting(node_id, tell)
        entry.timer = self._loop.call_later(timeout_ms / 1000, self._expire, address, entry)
        self._waiting.setdefault(address, []).append(entry)
        if address not in self._dialling:
            task = self._dialling[address] = self._loop.create_task(self._dial(address), name="dial")
            task.add_done_callback(lambda _: self._dialling.pop(address, None))

    def _fitting(self, address: str, link: Link, node_id: int | None) -> Link | NotSentError:
        """Return the connection if the wanted node answers there, else the reason why not: the address is outdated."""
        answers = self._who[link].node_id
        if node_id is None or answers == node_id:
            return link
        misfit = MisfitError(ErrorCode.INVALID_REQUEST, f"node {answers} answers where node {node_id} is wanted")
        return NotSentError(f"{address}: {misfit}", misfit=misfit)

    def _usable(self, address: str) -> Link | None:
        link = self._links.get(address)
        if link is None or link.is_usable:
            return link
        # The other side leaves this connection because a second one exists.
        for other, who in self._who.items():
            if who.address == address and other.is_usable:
                self._links[address] = other
                return other
        return None

    def _expire(self, address: str, entry: _Waiting) -> None:
        waiting = self._waiting.get(address, [])
        if entry in waiting:
            waiting.remove(entry)
            if not waiting:
                del self._waiting[address]
            entry.tell(NotSentError(f"{address}: no connection in time"))

    def _tell_waiting(self, address: str, found: Link | NotSentError) -> None:
        for entry in self._waiting.pop(address, ()):
            if entry.timer is not None:
                entry.timer.cancel()
            try:
                entry.tell(found if isinstance(found, NotSentError) else self._fitting(address, found, entry.node_id))
            except Exception:
                # The callback of one caller failed. The others still get their outcome.
                logger.exception("event=outcome_failed peer=%s", address)

    async def _dial(self, address: str) -> None:
        # host:port, or [address]:port for IPv6.
        host, _, port = address.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        misfits: list[MisfitError] = []
        link = self._new_link(is_dialler=True, on_who=None, on_misfit=misfits.append)
        try:
            async with asyncio.timeout(DIAL_MS / 1000):
                await self._loop.create_connection(lambda: link, host, int(port))
                await link.greeted
        except (OSError, TimeoutError, ValueError, OverflowError, BadFrameError) as error:
            link.close(b"")
            reason = f"{address}: {misfits[0]}" if misfits else f"{address} cannot be reached: {error!r}"
            is_refused = isinstance(error, ConnectionRefusedError)
            failure = NotSentError(reason, is_refused=is_refused, misfit=misfits[0] if misfits else None)
            self._failed[address] = failure
            self._loop.call_later(REDIAL_MS / 1000, self._failed.pop, address)
            logger.info("event=dial_failed peer=%s error=%r", address, error)
            self._tell_waiting(address, failure)
        except asyncio.CancelledError:
            link.close(b"")
            raise
        else:
            self._links[address] = link
            self._tell_waiting(address, link)
            self._see_to_spares()

    def _adopt(self, link: Link, who: Identity) -> None:
        """Use a connection that the other server dialled for requests of this side, too."""
        if who.address is None:
            return
        present = self._links.get(who.address)
        if present is None or not present.is_usable:
            self._links[who.address] = link
            self._tell_waiting(who.address, link)
        self._see_to_spares()

    def _new_link(
        self,
        *,
        is_dialler: bool,
        on_who: Callable[[Link, Identity], None] | None,
        on_misfit: Callable[[MisfitError], None] | None = None,
    ) -> Link:
        def check(hello: bytes) -> bytes | None:
            try:
                who = checked(hello, self._identity)
            except MisfitError as error:
                logger.warning("event=connection_refused error=%s", error)
                if on_misfit is not None:
                    on_misfit(error)
                return error.goodbye()
            self._who[link] = who
            if on_who is not None:
                # The core takes calls only after it has handled the HELLO.
                self._loop.call_soon(on_who, link, who)
            return None

        link = Link(
            is_dialler=is_dialler,
            hello=self._identity.encode(),
            services=self._services,
            check_hello=check,
            on_over=lambda link, reason: self._lose(link, reason, is_dialler=is_dialler),
            limits=self._limits,
        )
        self._all[link] = None
        return link

    def _lose(self, link: Link, reason: str, *, is_dialler: bool) -> None:
        who = self._who.pop(link, None)
        self._all.pop(link, None)
        self._leaving.discard(link)
        if not is_dialler:
            self._accepted_count -= 1
        for address, each in list(self._links.items()):
            if each is link:
                del self._links[address]
        if who is not None and not self._is_closed:
            logger.info("event=connection_over node_id=%d reason=%s", who.node_id, reason)

    def _see_to_spares(self) -> None:
        if self._sweep is None and len(self._all) > len(self._links):
            self._sweep = self._loop.call_later(SPARE_SWEEP_MS / 1000, self._close_spares)

    def _close_spares(self) -> None:
        self._sweep = None
        used = set(self._links.values())
        for link in list(self._all):
            who = self._who.get(link)
            if link in self._leaving:
                if link.open_count == 0:
                    link.close(b"")
                continue
            if link in used or who is None or who.address not in self._links:
                continue
            # Only the smaller node id decides. Otherwise each side might leave the connection that the other one uses. Calls
            # that cross the GOODBYE are still served; a later sweep closes the connection when no call is open.
            if self._identity.node_id < who.node_id:
                self._leaving.add(link)
                link.leave(b"")
        self._see_to_spares()
