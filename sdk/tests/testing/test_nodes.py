# SPDX-License-Identifier: Apache-2.0
"""The server processes of the keeper: signals, and what holds once they are carried out."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
from lograft.testing._keeper.nodes import Node

PAUSES = 10
END_WAIT_S = 20


def test_paused_process_stands_still_when_the_verb_returns(tmp_path: Path) -> None:
    """The system stops a process some time after the signal: a test that looks at once must not find it running."""
    busy = "import threading\nfor _ in range(4): threading.Thread(target=lambda: [None for _ in iter(int, 1)]).start()"
    node = Node(1, tmp_path, tmp_path / "node.log", ["-c", busy])
    node.start()
    try:
        assert node.pid is not None
        process = psutil.Process(node.pid)
        for _ in range(PAUSES):
            node.pause()
            assert process.status() == psutil.STATUS_STOPPED
            node.signal(signal.SIGCONT)
    finally:
        node.kill()
    assert node.status == -signal.SIGKILL


def test_pause_of_a_process_that_has_ended_does_nothing(tmp_path: Path) -> None:
    """Nothing is left to pause, and the exit status stays."""
    node = Node(1, tmp_path, tmp_path / "node.log", ["-c", "raise SystemExit(3)"])
    node.start()
    process = node._process  # pyright: ignore[reportPrivateUsage]
    assert process is not None
    process.wait(END_WAIT_S)
    node.pause()
    assert node.status == 3
