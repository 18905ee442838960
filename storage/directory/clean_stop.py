# SPDX-License-Identifier: Apache-2.0
"""The mark of an orderly stop of a whole broker: `clean-stop` in each of its log directories.

It says under which broker epoch (registration) all logs were flushed and closed clean. At its next start the broker says this epoch
to the controller, which knows the epoch of the newest registration: if the two differ, the broker has lived since and did not
stop cleanly. So the mark is never removed, only replaced, and one that is old, damaged or missing proves nothing.

Law: written last, when nothing is left to be flushed. Whether one log is clean is a mark of its own (`recovery-point`).
Source: KIP-966 (`.kafka_cleanshutdown`); docs/storage_format.md section 2.6.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from storage.errors import DiskError
from storage.files.checkpoints import encode_lines, read_lines, replace_file
from storage.files.names import CLEAN_STOP_FILE

from .directories import LogDirectory

_EPOCH_LINE = re.compile(r"broker_epoch ([0-9]{1,18})", re.ASCII)


def mark_clean_stop(directories: Sequence[LogDirectory], broker_epoch: int) -> None:
    """Leave the mark in all log directories of a broker. Waits for the devices.

    Raises:
        DiskFullError, DiskFailedError, DiskAccessError: some have no mark of this epoch; the stop counts as unclean.
    """
    assert broker_epoch >= 0, f"broker epoch {broker_epoch}"
    content = encode_lines([f"broker_epoch {broker_epoch}"])
    for directory in directories:
        replace_file(directory.disk, f"{directory.path}/{CLEAN_STOP_FILE}", content)


def last_clean_stop(directories: Sequence[LogDirectory]) -> int | None:
    """Return the broker epoch of the last clean stop; None if it is not known, or not the same in all log directories."""
    epochs = {_read_epoch(directory) for directory in directories}
    return epochs.pop() if len(epochs) == 1 else None


def _read_epoch(directory: LogDirectory) -> int | None:
    try:
        lines = read_lines(directory.disk, f"{directory.path}/{CLEAN_STOP_FILE}")
    except DiskError:
        # The directory will tell by itself what is wrong with it.
        return None
    found = [match for match in map(_EPOCH_LINE.fullmatch, lines or ()) if match is not None]
    return int(found[0][1]) if len(found) == 1 else None
