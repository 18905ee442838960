# SPDX-License-Identifier: Apache-2.0
"""Work in threads: it ends when asked to, and its errors are raised by `join` and `check`."""

from __future__ import annotations

import threading

import pytest

from integration_tests.harness.background import Background, Repeated

JOIN_TIMEOUT_S = 300.0


def test_work_ends_when_it_is_asked_to() -> None:
    """It sees the order, and is over after `join`, which may come twice."""
    seen: list[str] = []

    def work() -> None:
        background.stopping.wait(JOIN_TIMEOUT_S)
        seen.append("asked")

    background = Background("work", work, join_timeout_s=JOIN_TIMEOUT_S)
    background.start()
    assert background.is_alive
    background.join()
    background.join()
    assert (seen, background.is_alive, background.broken) == (["asked"], False, None)


def test_what_breaks_the_work_is_raised() -> None:
    """`join` and `check` raise an error with the exception as its cause."""

    def work() -> None:
        raise ValueError("no such topic")

    background = Background("the reader", work, join_timeout_s=JOIN_TIMEOUT_S)
    background.start()
    for wait in (background.join, background.check):
        with pytest.raises(RuntimeError, match="the reader broke") as raised:
            wait()
        assert isinstance(raised.value.__cause__, ValueError)


def test_work_that_does_not_end_is_told() -> None:
    """After its time limit `join` raises. The thread keeps running."""
    over = threading.Event()

    def work() -> None:
        over.wait(JOIN_TIMEOUT_S)

    background = Background("the reader", work, join_timeout_s=0.01)
    background.start()
    with pytest.raises(TimeoutError, match=r"the reader did not end within 0\.01 s"):
        background.join()
    over.set()


def test_step_is_repeated_until_the_order_to_stop() -> None:
    """Several times, and not after `join`."""
    steps: list[int] = []
    enough = threading.Event()

    def step() -> None:
        steps.append(len(steps))
        if len(steps) >= 3:
            enough.set()

    repeated = Repeated("steps", step, 0.001, join_timeout_s=JOIN_TIMEOUT_S)
    repeated.start()
    assert enough.wait(JOIN_TIMEOUT_S)
    repeated.join()
    count = len(steps)
    assert count >= 3
    assert len(steps) == count
