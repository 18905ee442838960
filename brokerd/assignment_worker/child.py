# SPDX-License-Identifier: Apache-2.0
"""The assignment process: reads requests from its standard input, and writes the answers to its standard output, one by one.

It ends when its input does, so that it never outlives its broker. It imports the assignors alone, and starts in tens of milliseconds.
"""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path
from typing import BinaryIO, Final

from brokerd.assignment_worker import codec
from brokerd.groups.assignment.assignors import assignor_named
from brokerd.groups.assignment.specs import AssignmentError

NICE: Final = 5
"""Steps by which the process stands back behind its broker where both want one processor."""

_ROOT: Final = Path(__file__).resolve().parents[2]

COMMAND: Final = (
    sys.executable,
    # Neither the environment nor installed packages: the assignors need the standard library alone.
    "-I",
    "-S",
    "-c",
    f"import sys; sys.path.insert(0, {str(_ROOT)!r}); from brokerd.assignment_worker.child import main; main()",
)
"""Command that starts the process."""


def main() -> None:
    """Answer requests until the input ends."""
    os.nice(NICE)
    # Assignors leave no cycles, and looking for some takes a fifth of their time.
    gc.disable()
    try:
        while _answer_one(sys.stdin.buffer, sys.stdout.buffer):
            pass
    except BrokenPipeError:
        # The broker is gone. Nothing is left to flush, so that the interpreter does not complain about the pipe at its exit.
        os._exit(0)


def _answer_one(source: BinaryIO, sink: BinaryIO) -> bool:
    """Answer one request; return False at the end of the input."""
    request = codec.Request()
    while True:
        head = source.read(codec.LENGTH.size)
        if len(head) < codec.LENGTH.size:
            return False
        (length,) = codec.LENGTH.unpack(head)
        data = source.read(length)
        if len(data) < length:
            return False
        if request.add(codec.unpack(data)):
            break
    try:
        assignment = assignor_named(request.assignor).assign(request.members, request.topics)
    except AssignmentError as error:
        sink.write(codec.pack(codec.refusal_frame(error)))
    else:
        for frame in codec.answer_frames(request.members, assignment):
            sink.write(codec.pack(frame))
    sink.flush()
    return True
