# SPDX-License-Identifier: Apache-2.0
"""The shell of a coordinator partition over a real replica: appends, answers, leadership, loading."""

from __future__ import annotations

import asyncio

import pytest
from lograft.wire.codes import ErrorCode

from brokerd.coordinator import partition as partition_module
from brokerd.coordinator.limits import HELD_UP_GRACE_MS, HELD_UP_MS
from brokerd.coordinator.machine import State
from brokerd.coordinator.unserved import UnservedError
from brokerd.coordinator.unserved import UnservedReason as Reason
from brokerd.tests.coordinator.coordinating_broker import CoordinatingBroker, until
from brokerd.tests.coordinator.register_core import Break, Fill, Increment, Read, RegisterCommand, Remove
from brokerd.tests.replica.broker_of_three import append
from storage.testing.sim_disk import Refusal


def submitted(here: CoordinatingBroker, command: RegisterCommand, timeout_ms: int = 30_000) -> asyncio.Task[int]:
    return asyncio.create_task(here.runtime.submit(0, command, timeout_ms=timeout_ms))


async def reason_of(task: asyncio.Task[int]) -> Reason:
    with pytest.raises(UnservedError) as caught:
        await task
    return caught.value.unserved.reason


async def test_answer_comes_when_the_followers_have_the_records(here: CoordinatingBroker) -> None:
    """The records are in the log at once; the response waits for the high watermark."""
    await here.start()
    task = submitted(here, Increment("a"))
    await until(lambda: here.replica.log.flushed_offset == 1)
    assert here.core.registers == {"a": (1, "")}
    assert not task.done()
    here.commit()
    assert await task == 1


async def test_commands_of_one_step_share_a_batch(here: CoordinatingBroker) -> None:
    """A hundred commands of different scopes go into two batches, by the limit of a turn."""
    await here.start()
    responses = await here.submit(*(Increment(f"r{at}") for at in range(100)))
    assert responses == [1] * 100
    assert here.batch_sizes() == [64, 36]


async def test_state_is_loaded_by_the_next_leadership(here: CoordinatingBroker) -> None:
    """Increments, a removal and many batches: the next core counts on from there."""
    await here.start()
    await here.submit(Increment("a"), Increment("a"), Increment("b"), Remove("b"), Fill("x", 500))
    before = here.registers
    first = here.core
    await here.lead_again()
    assert here.core is not first
    assert here.registers == before
    assert await here.submit(Increment("a"), Read("b")) == [3, 0]
    assert here.partition.loaded_records == 504


async def test_loading_waits_for_the_high_watermark(here: CoordinatingBroker) -> None:
    """Everything is replayed, but the followers have not confirmed it: come back."""
    await here.start()
    await here.submit(Increment("a"))
    here.three.lead(2)
    here.three.lead(1)
    task = submitted(here, Increment("a"))
    assert await reason_of(task) is Reason.LOADING
    here.three.lead(2)
    lost = submitted(here, Increment("a"))
    with pytest.raises(UnservedError) as caught:
        await lost
    assert caught.value.unserved.reason is Reason.MOVED
    leader = caught.value.unserved.failure.leader
    assert leader is not None
    assert (leader.leader_id, leader.port) == (2, 2)


async def test_end_of_the_leadership_answers_by_what_may_be_in_the_log(here: CoordinatingBroker) -> None:
    """Appended: unknown. Read-only: moved. Both in the step in which the leadership ends."""
    await here.start()
    write = submitted(here, Increment("a"))
    await until(lambda: here.replica.log_end_offset == 1)
    read = submitted(here, Read("a"))
    await until(lambda: here.partition.machine.waiting_count == 2)
    here.three.lead(None)
    assert here.partition.machine.state is State.INACTIVE
    assert await reason_of(write) is Reason.OUTCOME_UNKNOWN
    assert await reason_of(read) is Reason.NO_COORDINATOR
    assert await reason_of(submitted(here, Read("a"))) is Reason.NO_COORDINATOR


async def test_next_epoch_of_the_same_leader_loads_again(here: CoordinatingBroker) -> None:
    """A new epoch is a new leadership, also for the broker that led before."""
    await here.start()
    await here.submit(Increment("a"))
    first, epoch = here.core, here.replica.leader_epoch
    write = submitted(here, Increment("a"))
    await until(lambda: here.replica.log_end_offset == 2)
    here.three.lead(1)
    assert await reason_of(write) is Reason.OUTCOME_UNKNOWN
    here.subscribe()
    here.commit()
    await until(lambda: here.partition.machine.core not in (None, first))
    assert here.partition.machine.leader_epoch == epoch + 1
    assert await here.submit(Read("a")) == [2]


async def test_refused_append_changes_nothing(here: CoordinatingBroker) -> None:
    """With too few replicas in sync the command gets that failure; the state and the log stay."""
    await here.start()
    await here.submit(Increment("a"))
    here.three.lead(1, isr=(1,))
    await here.state(State.LOADING)
    here.subscribe()
    here.three.lead(1, isr=(1, 2, 3))
    here.subscribe()
    here.commit()
    await here.active()
    here.three.lead(1, isr=(1,))
    here.subscribe()
    # The high watermark stands still below min ISR; what was loaded is committed already.
    await here.active()
    task = submitted(here, Increment("a"))
    with pytest.raises(UnservedError) as caught:
        await task
    unserved = caught.value.unserved
    assert (unserved.reason, unserved.failure.code) == (Reason.REFUSED, ErrorCode.NOT_ENOUGH_REPLICAS)
    assert here.registers == {"a": 1}
    assert here.replica.log_end_offset == 1


async def test_disk_that_fails_during_an_append_leaves_the_outcome_open(here: CoordinatingBroker) -> None:
    """A part may be in the log. Nobody coordinates here any more."""
    await here.start()
    await here.submit(Increment("a"))
    here.three.disk.refuse("append", ".log", Refusal.IO_ERROR)
    assert await reason_of(submitted(here, Increment("a"))) is Reason.OUTCOME_UNKNOWN
    await until(lambda: here.runtime.find(0) is None)


async def test_full_disk_refuses_and_the_next_command_succeeds(here: CoordinatingBroker) -> None:
    """Nothing was appended; after space is free the same command is the next increment."""
    await here.start()
    here.three.disk.refuse("append", ".log", Refusal.FULL)
    assert await reason_of(submitted(here, Increment("a"))) is Reason.REFUSED
    here.three.disk.forgive()
    assert await here.submit(Increment("a")) == [1]


async def test_foreign_append_is_noticed_and_loaded(here: CoordinatingBroker) -> None:
    """Another writer makes the state incomplete: the partition fails and loads again, with what the other wrote."""
    await here.start()
    await here.submit(Increment("a"))
    append(here.replica, b"without a key")
    write = submitted(here, Increment("a"))
    assert await reason_of(write) is Reason.OUTCOME_UNKNOWN
    assert here.partition.machine.state is State.FAILED
    assert await reason_of(submitted(here, Read("a"))) is Reason.FAILED
    here.commit()
    await here.active()
    assert here.registers == {"a": 2}


async def test_record_that_cannot_be_replayed_fails_and_is_tried_again(
    here: CoordinatingBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partition does not serve a state that it does not understand; it loads once it does."""
    await here.start()
    await here.submit(Increment("a"))
    codec = type(here.runtime._codec)
    decode = codec.decode
    monkeypatch.setattr(codec, "decode", lambda self, record: 1 // 0)
    here.three.lead(2)
    here.three.lead(1)
    here.subscribe()
    here.commit()
    await here.state(State.FAILED)
    assert await reason_of(submitted(here, Read("a"))) is Reason.FAILED
    monkeypatch.setattr(codec, "decode", decode)
    await here.active()
    assert here.registers == {"a": 1}


async def test_time_limit_says_whether_records_were_appended(here: CoordinatingBroker) -> None:
    """An appended command is unknown; a read of its state has changed nothing."""
    await here.start()
    write = submitted(here, Increment("a"), timeout_ms=20)
    assert await reason_of(write) is Reason.OUTCOME_UNKNOWN
    assert await reason_of(submitted(here, Read("a"), timeout_ms=20)) is Reason.TIMED_OUT
    here.commit()
    assert await here.submit(Increment("a")) == [2]


async def test_cancelled_caller_leaves_nothing_behind(here: CoordinatingBroker) -> None:
    """Its future is gone; its command, which was appended, stays."""
    await here.start()
    write = submitted(here, Increment("a"))
    await until(lambda: here.replica.log_end_offset == 1)
    write.cancel()
    with pytest.raises(asyncio.CancelledError):
        await write
    assert here.partition._futures == {}
    assert await here.submit(Increment("a")) == [2]


async def test_command_that_breaks_the_core_fails_alone(here: CoordinatingBroker) -> None:
    """The exception is logged, and the next command is served."""
    await here.start()
    assert await reason_of(submitted(here, Break())) is Reason.FAILED
    assert await here.submit(Increment("a")) == [1]


async def test_batch_above_the_limit_of_the_topic_is_refused(here: CoordinatingBroker) -> None:
    """Configs may forbid what the runtime would append."""
    await here.start()
    here.configure(max_message_bytes="1024")
    await until(lambda: here.replica.max_message_bytes == 1024)
    assert await reason_of(submitted(here, Increment("a", padding_bytes=2_000))) is Reason.REFUSED
    assert await here.submit(Increment("a")) == [1]


async def test_leases_end_by_the_timer_and_begin_again_after_loading(here: CoordinatingBroker) -> None:
    """The timer of the shell follows the deadline of the core; the response of the tick comes when it is committed."""
    await here.start()
    await here.submit(Increment("a", lease_ms=60_000), Increment("b", lease_ms=50))
    await until(lambda: here.replica.log_end_offset == 3)
    assert here.ticks == []
    here.commit()
    await until(lambda: here.ticks == [1])
    assert here.registers == {"a": 1}
    await here.lead_again()
    now_ms = here.core.now_ms
    assert now_ms is not None
    assert here.core.deadlines_ms == {"a": now_ms + 60_000}


async def test_late_timer_lets_clients_be_heard_first(
    here: CoordinatingBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a pause of the process no lease ends before what waits in the sockets was read."""
    await here.start()
    await here.submit(Increment("a", lease_ms=60_000))
    clock, late_ms = partition_module.monotonic_ms, 60_000 + HELD_UP_MS
    monkeypatch.setattr(partition_module, "monotonic_ms", lambda: clock() + late_ms)
    before_ms, due_ms = clock() + late_ms, here.partition._timer_due_ms
    # The event loop calls it as soon as it runs again.
    here.partition._on_timer(due_ms)
    assert await here.submit(Read("a")) == [1]
    assert before_ms + HELD_UP_GRACE_MS <= here.partition._timer_due_ms
    assert here.registers == {"a": 1}
    late_ms += HELD_UP_GRACE_MS
    here.partition._on_timer(here.partition._timer_due_ms)
    await until(lambda: here.replica.log_end_offset == 2)
    assert here.registers == {}


async def test_loading_keeps_the_event_loop_free(here: CoordinatingBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between slices others have their turn: here after every look at the clock."""
    monkeypatch.setattr(partition_module, "LOAD_SLICE_MS", 0)
    await here.start()
    await here.submit(*(Fill(f"f{at}-", 640) for at in range(3)))
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    here.three.lead(2)
    here.three.lead(1)
    here.subscribe()
    here.commit()
    counter = asyncio.create_task(count())
    await until(lambda: here.partition.machine.core is not None)
    counter.cancel()
    assert turns >= 3 * 640 // 64
    assert here.partition.loaded_records == 3 * 640


async def test_leadership_lost_while_loading_ends_the_loading(
    here: CoordinatingBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next leadership loads from the beginning, with a core of its own."""
    monkeypatch.setattr(partition_module, "LOAD_SLICE_MS", 0)
    await here.start()
    await here.submit(*(Fill(f"f{at}-", 640) for at in range(3)))
    for _ in range(5):
        here.three.lead(2)
        here.three.lead(1)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    here.subscribe()
    here.commit()
    await here.active()
    assert len(here.registers) == 3 * 640


async def test_stopped_runtime_answers_everything(here: CoordinatingBroker) -> None:
    """Waiting commands get typed answers, later ones too."""
    await here.start()
    write = submitted(here, Increment("a"))
    await until(lambda: here.replica.log_end_offset == 1)
    await here.runtime.stop()
    assert await reason_of(write) is Reason.OUTCOME_UNKNOWN
    with pytest.raises(UnservedError) as caught:
        await here.runtime.submit(0, Read("a"))
    assert caught.value.unserved.failure.code is ErrorCode.SHUTTING_DOWN
    await here.runtime.stop()


async def test_other_partitions_and_brokers_are_named(here: CoordinatingBroker) -> None:
    """No such partition: no coordinator. A follower names the leader."""
    await here.start(leader_id=2)
    with pytest.raises(UnservedError) as caught:
        await here.runtime.submit(7, Read("a"))
    assert caught.value.unserved.reason is Reason.NO_COORDINATOR
    assert await reason_of(submitted(here, Read("a"))) is Reason.MOVED
