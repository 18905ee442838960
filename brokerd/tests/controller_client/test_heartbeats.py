# SPDX-License-Identifier: Apache-2.0
"""Registration and heartbeats of a broker, to a scripted controller over real connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from google.protobuf.message import Message
from lograft.internal.v1 import controller_pb2
from lograft.wire.codes import ErrorCode

from brokerd.controller_client.controller_calls import ControllerCalls
from brokerd.controller_client.lifecycle import BrokerIdentity, BrokerLifecycle, BrokerState
from brokerd.errors import ClusterMismatchError, RegistrationRefusedError
from brokerd.tests.controller_client.scripted_controller import CLUSTER, ScriptedController, calls_to, controller_of
from brokerd.tests.support import WAIT_S
from metaquorum.metadata.listener import QuorumLeader
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.net.connection import Limits
from metaquorum.net.methods import Method
from metaquorum.net.service import RefusalError
from metaquorum.tests.quorum_cluster import until

SESSION_MS = 400
NONSENSE = b"\xff\xff\xff"


class Controller(ScriptedController):
    """Registers every broker under the next epoch and answers heartbeats. A test may put other answers first."""

    def __init__(self, *, cluster_id: str = CLUSTER) -> None:
        super().__init__(self._reply, cluster_id=cluster_id)
        self.registrations: list[controller_pb2.RegisterBrokerRequest] = []
        self.beats: list[controller_pb2.HeartbeatRequest] = []
        self.epoch = 10
        self.interval_ms = 20
        self.is_fenced = False
        self.first: dict[Method, list[bytes | RefusalError | None]] = {}
        """Answers that come before all others; None: no answer, ever."""

    async def _reply(self, method: Method, data: bytes) -> bytes:
        answer: Message
        if method is Method.REGISTER_BROKER:
            self.registrations.append(controller_pb2.RegisterBrokerRequest.FromString(data))
            self.epoch += 1
            answer = controller_pb2.RegisterBrokerResponse(
                broker_epoch=self.epoch, heartbeat_interval_ms=self.interval_ms, session_timeout_ms=SESSION_MS
            )
        else:
            assert method is Method.HEARTBEAT
            self.beats.append(controller_pb2.HeartbeatRequest.FromString(data))
            answer = controller_pb2.HeartbeatResponse(
                fenced=self.is_fenced, should_shutdown=self.beats[-1].want_shutdown
            )
        if first := self.first.get(method):
            scripted = first.pop(0)
            if scripted is None:
                await asyncio.Event().wait()
            if isinstance(scripted, RefusalError):
                raise scripted
            assert scripted is not None
            return scripted
        return answer.SerializeToString()


class Broker:
    """Broker 2 and the states that it reported."""

    def __init__(self, calls: ControllerCalls, observer: MetadataLoader) -> None:
        self.states: list[BrokerState] = []
        identity = BrokerIdentity(cluster_id=CLUSTER, broker_id=2, rack="r", log_directory_ids=(bytes(16),))
        self.lifecycle = BrokerLifecycle(identity, observer, calls, on_state=self.states.append)
        self.observer = observer


@asynccontextmanager
async def broker_of(*controllers: ScriptedController, limits: Limits | None = None) -> AsyncIterator[Broker]:
    """A broker that has begun to register."""
    observer = MetadataLoader()
    async with calls_to(*controllers, observer=observer, limits=limits) as calls:
        broker = Broker(calls, observer)
        broker.lifecycle.start(host="127.0.0.1", port=9)
        try:
            async with asyncio.timeout(WAIT_S):
                yield broker
        finally:
            await broker.lifecycle.stop()


async def test_broker_registers_and_beats_over_one_connection() -> None:
    """They carry the epoch that it was given, one in each interval."""
    async with controller_of(Controller()) as controller, broker_of(controller) as broker:
        assert await broker.lifecycle.registered() == 11
        broker.lifecycle.set_ready()
        await until(lambda: len(controller.beats) > 5 and not controller.beats[-1].want_fence, what="heartbeats")
        (registration,) = controller.registrations
        assert (registration.cluster_id, registration.broker_id, registration.port) == (CLUSTER, 2, 9)
        assert {(beat.cluster_id, beat.broker_id, beat.broker_epoch) for beat in controller.beats} == {(CLUSTER, 2, 11)}
        assert broker.states[-1] == BrokerState(broker_epoch=11, is_fenced=False, may_stop=False)
        assert not broker.lifecycle.session.is_lost
        assert controller.connection_count == 1


async def test_news_are_told_at_once() -> None:
    """A change is sent at once, not only with the next heartbeat, which is far away."""
    controller = Controller()
    controller.interval_ms = 600_000
    async with controller_of(controller), broker_of(controller) as broker:
        await until(lambda: controller.beats, what="the first heartbeat")
        broker.lifecycle.note_offline_directories((b"d" * 16,))
        await until(lambda: controller.beats[-1].offline_log_directory_ids == [b"d" * 16], what="the failed directory")
        assert await broker.lifecycle.shut_down(timeout_ms=int(WAIT_S * 1000), leads_for_others=True)
        assert controller.beats[-1].want_shutdown


async def test_heartbeat_whose_answer_is_none_is_sent_again() -> None:
    """Bytes that do not decode carry no information, and do not end the broker."""
    controller = Controller()
    controller.first[Method.HEARTBEAT] = [NONSENSE] * 3
    async with controller_of(controller), broker_of(controller) as broker:
        await until(lambda: BrokerState(broker_epoch=11, is_fenced=False, may_stop=False) in broker.states, what="news")
        assert len(controller.registrations) == 1


async def test_registration_whose_answer_is_none_is_sent_again() -> None:
    """It uses the same incarnation id, so it is the same registration."""
    controller = Controller()
    controller.first[Method.REGISTER_BROKER] = [NONSENSE]
    async with controller_of(controller), broker_of(controller) as broker:
        assert await broker.lifecycle.registered() == 12
        first, second = controller.registrations
        assert first.incarnation_id == second.incarnation_id


@pytest.mark.parametrize("code", [ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_FENCED, ErrorCode.DUPLICATE_BROKER])
async def test_broker_that_the_controller_does_not_know_registers_again(code: ErrorCode) -> None:
    """It uses the same incarnation id. Until then it has no epoch."""
    controller = Controller()
    controller.first[Method.HEARTBEAT] = [RefusalError(code, "scripted")]
    async with controller_of(controller), broker_of(controller) as broker:
        await until(
            lambda: broker.lifecycle.broker_epoch == 12 and not broker.lifecycle.state.is_fenced, what="epoch 12"
        )
        first, second = controller.registrations
        assert first.incarnation_id == second.incarnation_id
        assert BrokerState(broker_epoch=None, is_fenced=True, may_stop=False) in broker.states


async def test_heartbeat_that_is_refused_otherwise_is_sent_again() -> None:
    """A fault of the controller does not cost the registration."""
    controller = Controller()
    controller.first[Method.HEARTBEAT] = [RefusalError(ErrorCode.INTERNAL, "scripted")] * 2
    async with controller_of(controller), broker_of(controller) as broker:
        await until(lambda: not broker.lifecycle.state.is_fenced, what="an answered heartbeat")
        assert len(controller.registrations) == 1


async def test_heartbeats_go_to_the_new_leader_at_once() -> None:
    """This includes heartbeats that the old leader does not answer."""
    old, new = Controller(), Controller()
    old.first[Method.HEARTBEAT] = [None]
    old.interval_ms = new.interval_ms = 600_000
    async with controller_of(old), controller_of(new), broker_of(old) as broker:
        await until(lambda: old.beats, what="the heartbeat to the old leader")
        broker.observer.on_leader(QuorumLeader(leader_id=5, quorum_epoch=5, address=new.address))
        await until(lambda: new.beats, what="the heartbeat to the new leader")
        assert new.beats[0].broker_epoch == 11
        assert not new.registrations


async def test_broker_whose_controller_is_gone_has_lost_its_session_in_time() -> None:
    """It asks the other voters until then, and the session is restored with the first answer."""
    controller, other = Controller(), Controller()
    async with controller_of(controller), controller_of(other), broker_of(controller, other) as broker:
        await until(lambda: controller.beats, what="a heartbeat")
        other.first[Method.HEARTBEAT] = [RefusalError(ErrorCode.NOT_CONTROLLER, "nobody leads")] * 100_000
        await controller.close()
        await until(lambda: broker.lifecycle.session.is_lost, what="a session without an answer")
        assert other.beats
        other.first.clear()
        await until(lambda: not broker.lifecycle.session.is_lost, what="an answer")
        assert not other.registrations


async def test_connection_that_swallows_a_registration_is_left() -> None:
    """The registration gets no answer and the connection no sign of life. The next attempt and the heartbeats use another one."""
    limits = replace(Limits(), ping_after_ms=600_000, liveness_ms=600_000, suspect_ms=50)
    controller = Controller()
    controller.swallow_count = 1
    async with controller_of(controller), broker_of(controller, limits=limits):
        await until(lambda: controller.beats, what="a heartbeat over another connection")
        assert controller.connection_count == 2


async def test_controller_of_another_cluster_ends_the_broker() -> None:
    """No retry can correct the address."""
    async with controller_of(Controller(cluster_id="other")) as controller, broker_of(controller) as broker:
        task = broker.lifecycle._task  # pyright: ignore[reportPrivateUsage]
        assert task is not None
        with pytest.raises(ClusterMismatchError, match="other"):
            await task


async def test_registration_that_is_refused_for_good_ends_the_broker() -> None:
    """A refusal that may pass does not end it."""
    controller = Controller()
    controller.first[Method.REGISTER_BROKER] = [
        RefusalError(ErrorCode.OUTCOME_UNKNOWN, "scripted"),
        RefusalError(ErrorCode.INTERNAL, "scripted"),
        RefusalError(ErrorCode.INVALID_REQUEST, "no such feature level"),
    ]
    async with controller_of(controller), broker_of(controller) as broker:
        task = broker.lifecycle._task  # pyright: ignore[reportPrivateUsage]
        assert task is not None
        with pytest.raises(RegistrationRefusedError, match="no such feature level"):
            await task
        assert len(controller.registrations) == 3
