# SPDX-License-Identifier: Apache-2.0
"""The side of the tests: starts a keeper, gives it orders, and ends it.

One order is under way at a time. Any thread may give one.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

from lograft.testing.errors import ClusterFailedError, FaultRefusedError

ORDER_WAIT_S: Final = 60.0
"""Seconds that an order may take. Filling a large disk takes the longest."""

END_WAIT_S: Final = 30.0
"""Seconds that the keeper may take to end the servers."""

READ_BYTES: Final = 64 * 1024
LOG_NAME: Final = "keeper.log"
SMALL_DISKS_NEED: Final = (
    "small disks need a mount namespace: run as root with CAP_SYS_ADMIN, or on a Linux that permits unprivileged user "
    "namespaces (`unshare --user --map-root-user --mount true` must work). Without them, leave out disk_bytes and use "
    "restart(node_id, min_free_bytes=1 << 60), which makes a broker take its disk for full"
)


class Keeper:
    """A running keeper.

    Args:
        directory: directory of the cluster's data and logs.
        is_temporary: True: the keeper deletes the directory at its end.
        has_namespace: True: the keeper has a mount namespace of its own, so that it can mount small disks.

    Raises:
        FaultRefusedError: the system permits no mount namespace.
    """

    def __init__(self, directory: Path, *, is_temporary: bool, has_namespace: bool) -> None:
        self._directory = directory
        self._is_temporary = is_temporary
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._received = bytearray()
        command = [sys.executable, "-P", "-m", "lograft.testing._keeper", str(directory)]
        command.append("temporary" if is_temporary else "kept")
        if has_namespace:
            command = [*_namespace(), *command]
        with (directory / LOG_NAME).open("ab") as log:
            # A session of its own: Ctrl-C goes to the tests alone, and they decide what ends when.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                start_new_session=True,
            )

    def order(self, verb: str, **arguments: object) -> Any:
        """Give an order and return its result.

        Raises:
            FaultRefusedError: the keeper could not carry it out.
            ClusterFailedError: the keeper has ended, or does not answer.
        """
        with self._lock:
            number = next(self._numbers)
            line = json.dumps({"id": number, "verb": verb, **arguments}).encode() + b"\n"
            assert self._process.stdin is not None
            try:
                self._process.stdin.write(line)
            except OSError as error:
                raise self._failed(f"cannot be told to {verb}: {error}") from None
            answer = self._answer(number, verb)
        if "error" in answer:
            raise FaultRefusedError(f"{verb}: {answer['error']}")
        return answer["result"]

    def _answer(self, number: int, verb: str) -> dict[str, Any]:
        """Read answers until the one with a number. Those before it belong to orders whose caller was interrupted."""
        assert self._process.stdout is not None
        descriptor, deadline = self._process.stdout.fileno(), time.monotonic() + ORDER_WAIT_S
        ready = select.poll()
        ready.register(descriptor, select.POLLIN)
        while True:
            line, separator, rest = self._received.partition(b"\n")
            if separator:
                self._received = bytearray(rest)
                answer: dict[str, Any] = json.loads(line)
                if answer["id"] == number:
                    return answer
                continue
            left_ms = int((deadline - time.monotonic()) * 1000)
            if left_ms <= 0 or not ready.poll(left_ms):
                raise self._failed(f"has not answered {verb} within {ORDER_WAIT_S:.0f} s")
            data = os.read(descriptor, READ_BYTES)
            if not data:
                raise self._failed(f"ended before it answered {verb}")
            self._received += data

    def _failed(self, what: str) -> ClusterFailedError:
        path = self._directory / LOG_NAME
        log = path.read_text(errors="replace").strip() if path.exists() else ""
        return ClusterFailedError(f"the keeper of the cluster {what}{': ' if log else ''}{log}")

    def close(self) -> None:
        """End the keeper, and with it the servers. Idempotent."""
        process = self._process
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            process.wait(END_WAIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if self._is_temporary:
            # The keeper has deleted it, unless somebody killed it.
            shutil.rmtree(self._directory, ignore_errors=True)


def _namespace() -> list[str]:
    """Return the command that runs another one in a mount namespace.

    Raises:
        FaultRefusedError: the system does not permit it.
    """
    program = shutil.which("unshare")
    if sys.platform == "linux" and program is not None:
        for options in (["--mount"], ["--user", "--map-root-user", "--mount"]):
            # A container may permit the namespace and still refuse to mount.
            probe = [program, *options, "mount", "-t", "tmpfs", "-o", "size=4096", "lograft-testing", "/tmp"]
            if subprocess.run(probe, check=False, capture_output=True).returncode == 0:
                return [program, *options]
    raise FaultRefusedError(SMALL_DISKS_NEED)
