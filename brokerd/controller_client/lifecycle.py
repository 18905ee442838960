# SPDX-License-Identifier: Apache-2.0
"""The life of this broker in the cluster: registration, heartbeats, its session, fencing, controlled shutdown.

Owns the registration, the heartbeats, and the broker's view of its session. Starts and stops nothing else: it calls `on_state`, and the
server acts.

How it works. The broker registers with the active controller under an incarnation id of its own process, and gets a broker epoch. From
then on it sends a heartbeat in each interval, and at once when something has changed. The controller unfences the broker when it has
applied its own registration and no longer asks to stay fenced. If a heartbeat gets no answer, the broker asks again, at the new
controller if the quorum has elected one. If the controller no longer knows the epoch, the broker registers again under the same
incarnation id. In a controlled shutdown the broker asks for permission to stop, and the controller first makes other brokers lead.
Source: KIP-631.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from google.protobuf.message import DecodeError
from lograft.internal.v1 import controller_pb2
from lograft.wire.codes import ErrorCode

from brokerd.controller_client.controller_calls import RETRY_MS, RETRY_MS_MAX, ControllerCalls, ControllerRefusedError
from brokerd.errors import ClusterMismatchError, RegistrationRefusedError
from brokerd.failure import RefusedError, refused
from brokerd.limits import SESSION_CHECK_MS
from metaquorum.controller_service.controller_service import is_gone
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.net.methods import Method

logger = logging.getLogger(__name__)

_STALE: Final = (ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_FENCED, ErrorCode.DUPLICATE_BROKER)
"""Refusals of a heartbeat which mean that the controller does not know the registration any more."""

REGISTER_ATTEMPT_MS: Final = 2_000
"""Milliseconds of one attempt to register."""

DUPLICATE_WAIT_MS: Final = 30_000
"""Milliseconds that a broker waits until the controller has fenced an earlier process with the same id."""

SHUTDOWN_BEAT_MS: Final = 25
"""Milliseconds between two heartbeats while the broker waits for permission to stop."""

FEATURE_LEVEL: Final = 1
"""Feature level of this build."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerIdentity:
    """What the broker tells the controller about itself when it registers, in addition to its address.

    `clean_stop_epoch` is the broker epoch of its last clean shutdown; None: not known.
    `incarnation_id` is random and differs for each process.
    """

    cluster_id: str
    broker_id: int
    rack: str
    log_directory_ids: tuple[bytes, ...]
    clean_stop_epoch: int | None = None
    incarnation_id: bytes = field(default_factory=lambda: os.urandom(16))


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerState:
    """The broker's state at the controller. `broker_epoch` None: it is not registered yet."""

    broker_epoch: int | None
    is_fenced: bool
    may_stop: bool


class ControllerSession:
    """The broker's view of its session with the controller. The session is lost if no heartbeat was answered in time.

    A broker whose session is lost serves its partitions for as long as it can. But clients must not learn from it who leads, because it
    would not hear of new leaders. Nor must they learn where a partition ends, because another broker may lead it and have appended.

    `BrokerLifecycle` alone begins and renews the session.

    Args:
        observer: the metadata.
    """

    def __init__(self, observer: MetadataLoader) -> None:
        self._observer = observer
        self.timeout_ms = 3_000
        # When the last answered request was sent, not when its answer came: the answer may have waited while the process was paused.
        self._asked_s = time.monotonic()
        # Metadata offset that this broker must have applied before its metadata can be trusted again.
        self._trusted_from = 0
        self._was_lost = False
        self._callbacks: dict[Callable[[], None], None] = {}

    @property
    def is_lost(self) -> bool:
        """True if no heartbeat of the last session was answered. Other brokers may lead this one's partitions by then.

        After such a silence it stays true until this broker has applied what the controller had committed at the time of its answer.
        The value is right at this moment, even just after a pause of the process.
        """
        return self._is_over() or self._observer.metadata_offset < self._trusted_from

    def on_lost(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` soon after the session is lost, until the returned function is called. The callback must not block."""
        self._callbacks[callback] = None
        return lambda: self._callbacks.pop(callback, None)

    def begin(self, *, asked_s: float, timeout_ms: int) -> None:
        """Begin a session at registration. `asked_s` is the monotonic time of the request; `timeout_ms` is the length of a session."""
        self.timeout_ms = timeout_ms
        self._asked_s = asked_s

    def renew(self, *, asked_s: float, metadata_offset: int) -> None:
        """Renew the session: a heartbeat, sent at `asked_s`, was answered. `metadata_offset` is what the controller had committed."""
        if self._is_over():
            self._trusted_from = metadata_offset
        self._asked_s = asked_s

    async def watch(self) -> None:
        """Check the session every `SESSION_CHECK_MS` and call the callbacks. Never ends."""
        while True:
            await asyncio.sleep(SESSION_CHECK_MS / 1000)
            self.look()

    def look(self) -> None:
        """Call the callbacks if the session was lost since the last check."""
        is_lost = self.is_lost
        if is_lost is self._was_lost:
            return
        self._was_lost = is_lost
        if is_lost:
            logger.warning("the session with the controller is lost: no heartbeat answered for %d ms", self.timeout_ms)
            for callback in tuple(self._callbacks):
                callback()
        else:
            logger.warning("the session with the controller is back")

    def _is_over(self) -> bool:
        return time.monotonic() - self._asked_s > self.timeout_ms / 1000


class _StaleRegistrationError(Exception):
    """The controller does not know the registration any more."""


class BrokerLifecycle:
    """Registers this broker, keeps its session, and asks for permission to stop.

    Args:
        identity: what to register.
        observer: gives the metadata offset for the heartbeats.
        calls: calls to the controller.
        on_state: called after every change of state; must not block.

    Attributes:
        session: the session with the controller.
        lacks_room: returns True if a log directory has too little space for appends of clients. Every heartbeat calls it.
    """

    def __init__(
        self,
        identity: BrokerIdentity,
        observer: MetadataLoader,
        calls: ControllerCalls,
        *,
        on_state: Callable[[BrokerState], None],
    ) -> None:
        self._identity = identity
        self._observer = observer
        self._calls = calls
        self._on_state = on_state
        self.session = ControllerSession(observer)
        self._host = ""
        self._port = self._replication_port = 0
        self._state = BrokerState(broker_epoch=None, is_fenced=True, may_stop=False)
        self._registered = asyncio.Event()
        self._may_stop = asyncio.Event()
        self._nudged = asyncio.Event()
        self.lacks_room: Callable[[], bool] = lambda: False
        self._want_fence = True
        self._want_shutdown = self._is_leaving = False
        self._offline_directory_ids: tuple[bytes, ...] = ()
        self._heartbeat_interval_ms = 500
        self._task: asyncio.Task[None] | None = None
        self._stop_watching: Callable[[], None] | None = None

    @property
    def cluster_id(self) -> str:
        """Cluster id."""
        return self._identity.cluster_id

    @property
    def broker_id(self) -> int:
        """Node id of this broker."""
        return self._identity.broker_id

    @property
    def broker_epoch(self) -> int | None:
        """Epoch of the registration; None before the first."""
        return self._state.broker_epoch

    @property
    def state(self) -> BrokerState:
        """The broker's state at the controller."""
        return self._state

    def start(self, *, host: str, port: int, replication_port: int = 0) -> asyncio.Task[None]:
        """Start to register and to send heartbeats. The returned task ends only with an error that no retry can fix.

        Args:
            host: host name or address that clients use.
            port: TCP port that clients use.
            replication_port: TCP port on that host for other brokers; 0: none.
        """
        assert self._task is None, "started twice"
        self._host, self._port, self._replication_port = host, port, replication_port
        self._stop_watching = self._observer.on_leader_change(self._nudged.set)
        self._task = asyncio.create_task(self._run(), name="broker-lifecycle")
        return self._task

    def set_ready(self) -> None:
        """Stop asking to stay fenced: the logs are open and the broker can serve."""
        self._want_fence = False
        self._nudged.set()

    def note_offline_directories(self, directory_ids: tuple[bytes, ...]) -> None:
        """Report the failed log directories to the controller at once. Each call names all of them."""
        self._offline_directory_ids = directory_ids
        self._nudged.set()

    async def registered(self) -> int:
        """Wait for the registration, without a limit, and return the broker epoch."""
        await self._registered.wait()
        assert self._state.broker_epoch is not None, "registered without an epoch"
        return self._state.broker_epoch

    async def wait_registered(self, *, timeout_ms: int) -> int:
        """Wait for the registration and return the broker epoch.

        Raises:
            RefusedError: BROKER_FENCED, the broker was not registered in time.
        """
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await self.registered()
        except TimeoutError:
            raise refused(ErrorCode.BROKER_FENCED, "the broker is not registered yet", retry_after_ms=500) from None

    async def shut_down(self, *, timeout_ms: int, leads_for_others: bool) -> bool:
        """Ask the controller for permission to stop (a controlled shutdown). Return False if it did not come in time.

        Args:
            timeout_ms: maximum milliseconds to wait.
            leads_for_others: True: this broker leads partitions with replicas elsewhere, and waits until other brokers lead them.
                False: no other broker has its partitions. It asks only to be fenced and waits for that; its partitions lose their
                leader afterwards.
        """
        if self._task is None or self._task.done() or self._state.broker_epoch is None:
            return False
        self._is_leaving = True
        if leads_for_others:
            self._want_shutdown = True
        else:
            self._want_fence = True
        self._nudged.set()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._may_stop.wait()
        except TimeoutError:
            return False
        return True

    async def stop(self) -> None:
        """Stop sending heartbeats. The controller will fence the broker. Idempotent."""
        if self._stop_watching is not None:
            self._stop_watching()
            self._stop_watching = None
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        pause_ms = RETRY_MS
        while True:
            try:
                if self._state.broker_epoch is None:
                    await self._register()
                answered = await self._beat()
            except _StaleRegistrationError:
                logger.warning("the controller does not know broker epoch %s any more", self._state.broker_epoch)
                self._registered.clear()
                self._set_state(BrokerState(broker_epoch=None, is_fenced=True, may_stop=False))
                continue
            pause_ms = RETRY_MS if answered else min(pause_ms * 2, RETRY_MS_MAX)
            await asyncio.sleep(pause_ms / 1000)

    async def _register(self) -> None:
        identity = self._identity
        request = controller_pb2.RegisterBrokerRequest(
            cluster_id=identity.cluster_id,
            broker_id=identity.broker_id,
            incarnation_id=identity.incarnation_id,
            host=self._host,
            port=self._port,
            replication_port=self._replication_port,
            rack=identity.rack,
            log_directory_ids=identity.log_directory_ids,
            feature_level=controller_pb2.FeatureRange(min_level=FEATURE_LEVEL, max_level=FEATURE_LEVEL),
            clean_stop_epoch=identity.clean_stop_epoch,
        ).SerializeToString()
        give_up_at = time.monotonic() + DUPLICATE_WAIT_MS / 1000
        pause_ms = RETRY_MS
        while True:
            asked_s = time.monotonic()
            try:
                # Repeating the request is harmless: the incarnation id makes it the same registration.
                answer = await self._calls.call(
                    Method.REGISTER_BROKER, request, timeout_ms=REGISTER_ATTEMPT_MS, is_read_only=True
                )
                response = controller_pb2.RegisterBrokerResponse.FromString(answer)
            except DecodeError as error:
                logger.warning("not registered yet: the answer is none: %s", error)
                await asyncio.sleep(pause_ms / 1000)
                pause_ms = min(pause_ms * 2, RETRY_MS_MAX)
                continue
            except ControllerRefusedError as error:
                self._check_retriable(error, give_up_at)
                if await self._fence_predecessor():
                    continue
                await asyncio.sleep(pause_ms / 1000)
                pause_ms = min(pause_ms * 2, RETRY_MS_MAX)
                continue
            except RefusedError as error:
                logger.warning("not registered yet: %s", error)
                continue
            self._heartbeat_interval_ms = max(response.heartbeat_interval_ms, 10)
            self.session.begin(asked_s=asked_s, timeout_ms=max(response.session_timeout_ms, 100))
            logger.info("registered: broker_id=%d broker_epoch=%d", identity.broker_id, response.broker_epoch)
            self._set_state(BrokerState(broker_epoch=response.broker_epoch, is_fenced=True, may_stop=False))
            self._registered.set()
            return

    def _check_retriable(self, error: ControllerRefusedError, give_up_at: float) -> None:
        failure = error.failure
        if failure.code is ErrorCode.WRONG_CLUSTER:
            raise ClusterMismatchError(failure.message) from error
        if failure.code is ErrorCode.DUPLICATE_BROKER and time.monotonic() >= give_up_at:
            raise RegistrationRefusedError(
                f"another process is registered as broker {self._identity.broker_id} and lives: {failure.message}"
            ) from error
        # The quorum leader may step down during a registration. Whether it was committed does not matter: the broker tries again.
        may_pass = failure.code in (ErrorCode.INTERNAL, ErrorCode.OUTCOME_UNKNOWN)
        if not may_pass and not failure.code.retriable:
            raise RegistrationRefusedError(f"the controller refuses this broker: {failure.message}") from error
        logger.info("registration refused, trying again: %s", failure.message)

    async def _fence_predecessor(self) -> bool:
        """Fence the registration of the previous process on this log directory, if that process is surely gone.

        After a crash the controller waits a whole session for the old process. This process knows more: it holds the lock of the
        log directory that the old one registered. It also either holds the old one's port, or finds that connections to it are
        refused. With a copied directory on another machine, the second test fails while the original process lives.

        Returns:
            True if the old registration is fenced now.
        """
        old = self._observer.image.brokers.get(self._identity.broker_id)
        if old is None or not old.can_lead or old.incarnation_id == self._identity.incarnation_id:
            return False
        if not old.log_directory_ids or old.log_directory_ids != self._identity.log_directory_ids:
            return False
        if (old.host, old.port) != (self._host, self._port) and not await is_gone(old.host, old.port):
            return False
        logger.info("fencing the registration of the process before: broker_epoch=%d", old.broker_epoch)
        try:
            answer = await self._exchange(broker_epoch=old.broker_epoch, want_fence=True)
        except ControllerRefusedError as error:
            logger.info("not fenced: %s", error)
            return False
        return answer is not None and answer.fenced

    async def _beat(self) -> bool:
        """Send heartbeats until one gets no answer. Return True if at least one was answered."""
        answered = False
        try:
            while await self._beat_once():
                answered = True
                await self._wait_for_beat()
        except ControllerRefusedError as error:
            if error.failure.code in _STALE:
                raise _StaleRegistrationError from error
            logger.info("heartbeat refused: %s", error)
        return answered

    async def _beat_once(self) -> bool:
        epoch = self._state.broker_epoch
        assert epoch is not None, "heartbeat without a registration"
        self._nudged.clear()
        asked_s = time.monotonic()
        response = await self._exchange(broker_epoch=epoch, want_fence=self._want_fence)
        if response is None:
            return False
        state = BrokerState(broker_epoch=epoch, is_fenced=response.fenced, may_stop=response.should_shutdown)
        if state.is_fenced != self._state.is_fenced:
            logger.info("broker is %s by the controller", "fenced" if state.is_fenced else "unfenced")
        self.session.renew(asked_s=asked_s, metadata_offset=response.metadata_offset)
        self._set_state(state)
        if state.may_stop or (self._is_leaving and state.is_fenced):
            # A fenced broker may stop: if it led partitions with replicas elsewhere, other brokers led them before it was fenced.
            self._may_stop.set()
        return True

    async def _exchange(self, *, broker_epoch: int, want_fence: bool) -> controller_pb2.HeartbeatResponse | None:
        """Send one heartbeat and return its answer; None if none came."""
        request = controller_pb2.HeartbeatRequest(
            cluster_id=self._identity.cluster_id,
            broker_id=self._identity.broker_id,
            broker_epoch=broker_epoch,
            metadata_offset=self._observer.metadata_offset,
            want_fence=want_fence,
            want_shutdown=self._want_shutdown,
            offline_log_directory_ids=self._offline_directory_ids,
            lacks_room=self.lacks_room(),
        )
        answer = await self._calls.attempt(
            Method.HEARTBEAT, request.SerializeToString(), timeout_ms=self.session.timeout_ms // 2
        )
        try:
            return None if answer is None else controller_pb2.HeartbeatResponse.FromString(answer)
        except DecodeError as error:
            logger.warning("the answer to a heartbeat is none: %s", error)
            return None

    async def _wait_for_beat(self) -> None:
        try:
            interval_ms = SHUTDOWN_BEAT_MS if self._is_leaving else self._heartbeat_interval_ms
            async with asyncio.timeout(interval_ms / 1000):
                await self._nudged.wait()
        except TimeoutError:
            pass  # the interval is over, the usual reason for the next heartbeat

    def _set_state(self, state: BrokerState) -> None:
        if state != self._state:
            self._state = state
            self._on_state(state)
