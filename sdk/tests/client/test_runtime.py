# SPDX-License-Identifier: Apache-2.0
"""The background thread of the blocking clients exists only while it is needed."""

from __future__ import annotations

import asyncio
import threading

import pytest
from lograft import Admin, Producer
from lograft._client.runtime import open_on_runtime, release_runtime
from lograft.errors import NoBrokerError


def is_running() -> bool:
    """True while the background thread runs."""
    return any(thread.name == "lograft" for thread in threading.enumerate())


def test_thread_lives_from_the_first_call_to_the_last_close() -> None:
    """Making clients starts nothing; the first call starts one thread for all; closing the last one ends it."""
    before = is_running()
    first, second = Admin("127.0.0.1:1", request_timeout_ms=50), Producer("127.0.0.1:1", delivery_timeout_ms=50)
    assert is_running() is before
    with pytest.raises(NoBrokerError):
        first.list_topics()
    with pytest.raises(NoBrokerError):
        second.send("topic", b"value")
    assert sum(thread.name == "lograft" for thread in threading.enumerate()) == 1
    first.close()
    assert is_running()
    second.close()
    assert is_running() is before


def test_runtime_is_given_back_when_a_client_cannot_start() -> None:
    """A constructor that fails on the loop leaves no thread behind."""
    before = is_running()

    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        open_on_runtime(fail)
    assert is_running() is before


def test_blocking_wait_is_bounded_and_passes_errors_on() -> None:
    """A coroutine that takes too long is cancelled. Its own TimeoutError is passed on as it is."""
    _, runtime = open_on_runtime(dict[str, int])
    try:
        cancelled = threading.Event()

        async def hang() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

        with pytest.raises(TimeoutError, match=r"0\.05 s"):
            runtime.run(hang(), timeout_s=0.05)
        assert cancelled.wait(10)

        async def fail() -> None:
            raise TimeoutError("its own")

        with pytest.raises(TimeoutError, match="its own"):
            runtime.run(fail(), timeout_s=10)
        assert not runtime.is_current_thread()
    finally:
        release_runtime(runtime)
