# SPDX-License-Identifier: Apache-2.0
"""Allocator tuning: works with glibc, and never fails."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest
from lograft.wire import malloc


def test_tuning_succeeds_in_a_fresh_process() -> None:
    """With glibc the parameters are set once. A large block then comes from the heap."""
    program = (
        "import ctypes\n"
        "from lograft.wire.malloc import tune_allocator\n"
        "assert tune_allocator() is tune_allocator() is True\n"
        "block = bytes(32 << 20)\n"
        "heap = [line for line in open('/proc/self/maps') if '[heap]' in line][0].split()[0]\n"
        "start, end = (int(edge, 16) for edge in heap.split('-'))\n"
        "assert start < id(block) < end, (heap, hex(id(block)))\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_tuning_is_done_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The result of the first call is kept."""
    monkeypatch.setattr(malloc, "_outcome", [False])
    assert malloc.tune_allocator() is False


def test_a_refusal_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A parameter that glibc refuses (here M_MXFAST, parameter 1, over its limit) gives False, not an error."""
    monkeypatch.setattr(malloc, "_outcome", [])
    monkeypatch.setattr(malloc, "_M_MMAP_THRESHOLD", 1)
    assert malloc.tune_allocator() is False


@pytest.mark.parametrize("error", [OSError, TypeError, AttributeError])
def test_other_platforms_are_left_alone(monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> None:
    """Without a libc, nothing happens."""

    def refuse(name: object) -> object:
        raise error(name)

    monkeypatch.setattr(malloc, "_outcome", [])
    monkeypatch.setattr(ctypes, "CDLL", refuse)
    assert malloc.tune_allocator() is False
