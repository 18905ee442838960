# SPDX-License-Identifier: Apache-2.0
"""The controller's shell over a log whose commits the test decides: answers, outcomes, limits, own work."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from lograft.wire.codes import ErrorCode

from metaquorum.controller.commands import (
    AllocateProducerIds,
    Heartbeat,
    ProducerIdsAllocated,
    TopicCreated,
)
from metaquorum.controller.controller import Controller
from metaquorum.controller.settings import ControllerSettings
from metaquorum.controller_service import commit_waiters
from metaquorum.controller_service.commit_waiters import CommandError
from metaquorum.metadata import waiters
from metaquorum.metadata.listener import CommittedBatch, QuorumLeader
from metaquorum.replica.quorum_node import BusyError, NotLeaderError
from metaquorum.tests.controller_shell import EPOCH, Shell, control, failure
from metaquorum.tests.controller_world import create_topic, view
from metaquorum.tests.quorum_cluster import until


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    one = Shell(tmp_path / "image")
    yield one
    one.store.close()


async def test_answer_comes_with_the_commit_and_not_before(shell: Shell) -> None:
    """An answer is sent when its records are committed, in order, with the offset at which they are visible."""
    await shell.activate()
    await shell.broker(1)
    first = asyncio.ensure_future(shell.host.submit(create_topic("a"), timeout_ms=5_000))
    second = asyncio.ensure_future(shell.host.submit(create_topic("b"), timeout_ms=5_000))
    await asyncio.sleep(0)
    assert shell.host.image.topic_by_name("a") is None
    done, _ = await asyncio.wait((first, second), timeout=0.05)
    assert not done
    batches, shell.log.pending = shell.log.pending, []
    shell.loader.on_commit(batches[0])
    outcome = await first
    assert isinstance(outcome.response, TopicCreated)
    assert outcome.metadata_offset == batches[0].next_offset
    assert not second.done()
    shell.loader.on_commit(batches[1])
    assert (await second).metadata_offset == batches[1].next_offset


async def test_answer_without_records_waits_for_what_it_rests_on(shell: Shell) -> None:
    """A refusal because of an uncommitted topic is sent only when that topic is committed."""
    await shell.activate()
    await shell.broker(1)
    creation = asyncio.ensure_future(shell.host.submit(create_topic("a"), timeout_ms=5_000))
    await asyncio.sleep(0)
    refusal = asyncio.ensure_future(shell.host.submit(create_topic("a", topic_id=bytes(16)), timeout_ms=5_000))
    done, _ = await asyncio.wait((creation, refusal), timeout=0.05)
    assert not done
    shell.commit()
    await creation
    with pytest.raises(CommandError, match="TOPIC_ALREADY_EXISTS"):
        await refusal


async def test_timeout_says_whether_anything_was_appended(shell: Shell) -> None:
    """A commit does not arrive: the outcome is unknown if records were appended; otherwise nothing was changed."""
    await shell.activate()
    epoch = await shell.broker(1)
    unknown = await failure(shell, create_topic("a"))
    assert unknown.code is ErrorCode.OUTCOME_UNKNOWN
    nothing = await failure(shell, AllocateProducerIds(broker_id=1, broker_epoch=epoch + 1))
    assert nothing.code is ErrorCode.TIMED_OUT
    assert nothing.retry_after_ms is not None
    # The record may still commit: that is what "unknown" means.
    shell.commit()
    assert shell.host.image.topic_by_name("a") is not None


def end_in_append(shell: Shell) -> None:
    """Let the next append check the quorum's clock and find that its leadership has ended."""

    def end() -> None:
        shell.log.on_append = None
        shell.log.known = QuorumLeader(leader_id=2, quorum_epoch=EPOCH + 1, address="127.0.0.1:9642")
        shell.loader.on_deactivate()

    shell.log.on_append = end


async def test_leadership_that_ends_within_an_append_leaves_the_outcome_unknown(shell: Shell) -> None:
    """As in a process that resumes after a stop: records of another leader at those offsets do not acknowledge the change."""
    await shell.activate()
    await shell.broker(1)
    end_in_append(shell)
    change = asyncio.ensure_future(shell.host.submit(create_topic("a"), timeout_ms=5_000))
    await asyncio.sleep(0)
    shell.log.pending.clear()
    shell.loader.on_commit(control(shell.loader.applied_offset, shell.log.end_offset + 10))
    with pytest.raises(CommandError, match="OUTCOME_UNKNOWN"):
        await change
    assert shell.host.image.topic_by_name("a") is None
    assert not shell.host.is_active


async def test_leadership_that_ends_within_own_work_leaves_nothing_to_do(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep whose append ends the leadership is neither repeated nor continued."""
    monkeypatch.setattr("metaquorum.controller_service.long_work.RETRY_AFTER_MS", 1)
    errors: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    await shell.activate()
    epoch = await shell.broker(1)
    await shell.run(create_topic("t", partition_count=5))
    away = Heartbeat(broker_id=1, broker_epoch=epoch, metadata_offset=1 << 40, want_fence=True)
    fencing = asyncio.ensure_future(shell.host.submit(away, timeout_ms=5_000))
    await asyncio.sleep(0)
    end_in_append(shell)
    with pytest.raises(CommandError, match="OUTCOME_UNKNOWN"):
        await fencing
    assert [len(batch.records) for batch in shell.log.pending] == [1, 5], "the fencing, and the sweep behind it"
    await asyncio.sleep(0.05)
    assert len(shell.log.pending) == 2
    assert errors == []


async def test_end_of_leadership_answers_everybody(shell: Shell) -> None:
    """Appended commands: outcome unknown. Others: not the controller, with the known leader."""
    await shell.activate()
    epoch = await shell.broker(1)
    appended = asyncio.ensure_future(shell.host.submit(create_topic("a"), timeout_ms=5_000))
    await asyncio.sleep(0)
    resting = asyncio.ensure_future(
        shell.host.submit(AllocateProducerIds(broker_id=1, broker_epoch=epoch + 1), timeout_ms=5_000)
    )
    impatient = asyncio.ensure_future(shell.host.submit(create_topic("b"), timeout_ms=5_000))
    await asyncio.sleep(0)
    impatient.cancel()
    await asyncio.sleep(0)
    shell.log.known = QuorumLeader(leader_id=2, quorum_epoch=EPOCH + 1, address="127.0.0.1:9642")
    shell.loader.on_deactivate()
    with pytest.raises(CommandError, match="OUTCOME_UNKNOWN"):
        await appended
    with pytest.raises(CommandError) as caught:
        await resting
    assert caught.value.code is ErrorCode.NOT_CONTROLLER
    assert caught.value.leader == shell.log.known
    with pytest.raises(asyncio.CancelledError):
        await impatient
    refused = await failure(shell, create_topic("c"))
    assert (refused.code, refused.leader) == (ErrorCode.NOT_CONTROLLER, shell.log.known)


async def test_next_leadership_starts_from_what_is_committed(shell: Shell) -> None:
    """Records that were appended in one leadership and lost are unknown in the next; no producer id is lost."""
    await shell.activate()
    epoch = await shell.broker(1)
    await failure(shell, create_topic("vanishes"))
    await failure(shell, AllocateProducerIds(broker_id=1, broker_epoch=epoch))
    shell.loader.on_deactivate()
    shell.log.pending.clear()
    shell.log.end_offset = shell.host.image.metadata_offset
    await shell.activate()
    await shell.run(create_topic("vanishes"))
    outcome = await shell.run(AllocateProducerIds(broker_id=1, broker_epoch=epoch))
    assert outcome.response == ProducerIdsAllocated(first_producer_id=1, count=1000)


@pytest.mark.parametrize(
    ("known", "code", "words"),
    [
        (QuorumLeader(leader_id=None, quorum_epoch=4, address=None), ErrorCode.QUORUM_UNAVAILABLE, "no leader"),
        (QuorumLeader(leader_id=1, quorum_epoch=4, address="h:1"), ErrorCode.QUORUM_UNAVAILABLE, "taking over"),
        (QuorumLeader(leader_id=2, quorum_epoch=4, address="h:1"), ErrorCode.NOT_CONTROLLER, "node 2 is"),
    ],
)
async def test_inactive_node_says_why(shell: Shell, known: QuorumLeader, code: ErrorCode, words: str) -> None:
    """No leader, just elected, another leader: three different answers, nothing appended."""
    shell.log.known = known
    shell.loader.on_leader(known)
    error = await failure(shell, create_topic("a"))
    assert error.code is code
    assert words in error.message
    assert shell.log.pending == []


async def test_full_or_lost_log_refuses_and_changes_nothing(shell: Shell) -> None:
    """A failed append leaves the overlay unchanged, so that the next decision is right."""
    await shell.activate()
    await shell.broker(1)
    shell.log.failure = BusyError("full")
    assert (await failure(shell, create_topic("a"))).code is ErrorCode.OVERLOADED
    shell.log.failure = NotLeaderError(QuorumLeader(leader_id=3, quorum_epoch=9, address=None))
    lost = await failure(shell, create_topic("a"))
    assert lost.code is ErrorCode.NOT_CONTROLLER
    assert lost.leader is not None
    assert lost.leader.leader_id == 3
    shell.log.failure = None
    await shell.run(create_topic("a"))


async def test_own_work_is_tried_again_when_there_was_no_room(shell: Shell, caplog: pytest.LogCaptureFixture) -> None:
    """A sweep or a bootstrap that found the log full is repeated."""
    shell.log.failure = BusyError("full")
    with caplog.at_level(logging.INFO):
        shell.loader.on_activate(EPOCH)
        await until(lambda: "event=command_postponed" in caplog.text, what="a postponed command")
    shell.log.failure = None

    def committed() -> bool:
        shell.commit()
        return bool(shell.host.image.features)

    await until(committed, what="the bootstrap record")


async def test_parked_commands_are_bounded(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Further commands are refused, and there is room again after a commit."""
    monkeypatch.setattr(commit_waiters, "MAX_PARKED_COMMANDS", 3)
    await shell.activate()
    await shell.broker(1)
    waiting = [
        asyncio.ensure_future(shell.host.submit(create_topic(f"t{number}"), timeout_ms=5_000)) for number in range(3)
    ]
    await asyncio.sleep(0)
    assert (await failure(shell, create_topic("more"))).code is ErrorCode.OVERLOADED
    shell.commit()
    await asyncio.gather(*waiting)
    await shell.run(create_topic("more"))


async def test_offset_waiters_are_bounded_and_woken_in_any_order(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers wait for their offset, a bounded number of them, and a stop ends their wait."""
    monkeypatch.setattr(waiters, "MAX_OFFSET_WAITERS", 2)
    here = shell.host.image.metadata_offset
    await shell.host.wait_for_offset(here, timeout_ms=1)
    far = asyncio.ensure_future(shell.host.wait_for_offset(here + 5, timeout_ms=5_000))
    near = asyncio.ensure_future(shell.host.wait_for_offset(here + 1, timeout_ms=5_000))
    await asyncio.sleep(0)
    with pytest.raises(CommandError, match="OVERLOADED"):
        await shell.host.wait_for_offset(here + 1, timeout_ms=5_000)
    shell.loader.on_commit(control(here, here + 1))
    await near
    assert not far.done()
    with pytest.raises(CommandError, match="METADATA_NOT_REACHED"):
        await shell.host.wait_for_offset(here + 9, timeout_ms=20)
    shell.host.stop()
    with pytest.raises(CommandError, match="SHUTTING_DOWN"):
        await far
    with pytest.raises(CommandError, match="SHUTTING_DOWN"):
        await shell.host.wait_for_offset(here + 9, timeout_ms=20)
    with pytest.raises(CommandError, match="SHUTTING_DOWN"):
        shell.host.require_active()


async def test_stop_lets_own_work_and_ticks_rest(tmp_path: Path) -> None:
    """After stop the host appends nothing itself, though the node may still lead for a moment."""
    shell = Shell(tmp_path / "image", settings=ControllerSettings(session_timeout_ms=100))
    await shell.activate()
    await shell.broker(1)
    shell.host.stop()
    await asyncio.sleep(0)
    appended = shell.log.end_offset
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await until(lambda: shell.log.end_offset != appended, what="an append that must not come")
    shell.loader.on_deactivate()
    shell.store.close()


async def test_missed_heartbeats_fence_after_the_session(tmp_path: Path) -> None:
    """The tick comes at the end of the first session."""
    shell = Shell(tmp_path / "image", settings=ControllerSettings(session_timeout_ms=150))
    await shell.activate()
    await shell.broker(1)

    def fenced() -> bool:
        shell.commit()
        return shell.host.image.brokers[1].fenced

    await until(fenced, what="the session to end")
    shell.loader.on_deactivate()
    shell.store.close()


async def test_controller_that_was_held_up_does_not_blame_the_brokers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """If the tick itself is much too late, the sessions start again instead of ending."""
    shell = Shell(tmp_path / "image", settings=ControllerSettings(session_timeout_ms=200))
    await shell.activate()
    await shell.broker(1)
    loop = asyncio.get_running_loop()
    blocked_until = loop.time() + 0.5
    while loop.time() < blocked_until:
        # Holds the event loop as a paused process would.
        pass
    with caplog.at_level(logging.WARNING):
        await until(lambda: "event=held_up" in caplog.text, what="the late tick")
    shell.commit()
    assert not shell.host.image.brokers[1].fenced
    shell.loader.on_deactivate()
    shell.store.close()


async def test_restart_replays_only_what_the_image_lacks(shell: Shell, tmp_path: Path) -> None:
    """The image on disk is at the last commit, and a new host asks for the records after it."""
    await shell.activate()
    await shell.broker(1)
    await shell.run(create_topic("a", partition_count=3, configs={"segment.ms": "5"}))
    shell.loader.on_deactivate()
    before = view(shell.host.image)
    offset = shell.loader.applied_offset
    shell.loader.settle()
    shell.store.close()
    again = Shell(tmp_path / "image")
    assert again.loader.applied_offset == offset
    assert view(again.host.image) == before
    again.store.close()


async def test_damaged_record_stops_the_listener(shell: Shell) -> None:
    """A committed record that cannot be read is never skipped: the node must stop."""
    broken = CommittedBatch(
        base_offset=2, next_offset=3, quorum_epoch=EPOCH, append_timestamp_ms=0, records=[b"\xff"], is_control=False
    )
    with pytest.raises(Exception, match="metadata record"):
        shell.loader.on_commit(broken)


async def test_contradiction_ends_all_deciding(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that the overlay cannot apply is a fault: the controller decides nothing on a state that is known to be wrong."""
    await shell.activate()
    await shell.broker(1)

    def contradict(controller: Controller, record: object, offset: int) -> None:
        raise AssertionError("contradiction")

    with monkeypatch.context() as patch:
        patch.setattr(Controller, "replay", contradict)
        with pytest.raises(AssertionError, match="contradiction"):
            await shell.host.submit(create_topic("a"), timeout_ms=50)
    assert (await failure(shell, create_topic("b"))).code is ErrorCode.SHUTTING_DOWN


async def test_linearizable_read_waits_for_the_quorum_and_for_the_image(shell: Shell) -> None:
    """First the leader is confirmed, then the image must have everything that was committed by then."""
    here = shell.host.image.metadata_offset
    reading = asyncio.ensure_future(shell.host.wait_for_everything(timeout_ms=5_000))
    await until(lambda: bool(shell.log.reads), what="the read to be sent")
    shell.log.reads[0].set_result(here + 1)
    assert not (await asyncio.wait((reading,), timeout=0.05))[0]
    shell.loader.on_commit(control(here, here + 1))
    await reading


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (NotLeaderError(QuorumLeader(leader_id=2, quorum_epoch=5, address="n2:1")), ErrorCode.NOT_CONTROLLER),
        (NotLeaderError(QuorumLeader(leader_id=None, quorum_epoch=5, address=None)), ErrorCode.QUORUM_UNAVAILABLE),
        (BusyError("full"), ErrorCode.OVERLOADED),
        (None, ErrorCode.QUORUM_UNAVAILABLE),
    ],
)
async def test_linearizable_read_that_cannot_be_given_says_why(
    shell: Shell, failure: Exception | None, code: ErrorCode
) -> None:
    """The refusal names the leader or when to retry; no stale state is returned."""
    reading = asyncio.ensure_future(shell.host.wait_for_everything(timeout_ms=5_000 if failure else 50))
    await until(lambda: bool(shell.log.reads), what="the read to be sent")
    if failure:
        shell.log.reads[0].set_exception(failure)
    with pytest.raises(CommandError) as caught:
        await reading
    assert caught.value.code is code
    assert (caught.value.leader is None) == (code is not ErrorCode.NOT_CONTROLLER)


async def test_only_a_standby_that_nobody_waits_at_may_lag(shell: Shell) -> None:
    """A reader at an offset makes the host apply held-back commits at once, and the next ones as they come."""
    host, loader = shell.host, shell.loader
    assert loader.may_lag
    reached = loader.applied_offset
    await host.wait_for_offset(reached, timeout_ms=1_000)
    assert shell.log.hurry_count == 0
    reader = asyncio.ensure_future(host.wait_for_offset(reached + 1, timeout_ms=5_000))
    await asyncio.sleep(0)
    assert (loader.may_lag, shell.log.hurry_count) == (False, 1)
    loader.on_commit(control(reached, reached + 1))
    await reader
    assert loader.may_lag
    shell.log.end_offset = reached + 1
    await shell.activate()
    assert not loader.may_lag
    loader.on_deactivate()
    assert loader.may_lag
