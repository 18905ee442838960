# SPDX-License-Identifier: Apache-2.0
"""The mark of a clean shutdown of a broker: file `clean-stop` in each of its log directories.

It holds the broker epoch (registration) under which all logs were flushed and closed. At its next start the broker
reports this epoch to the controller, which knows the newest registration. If the two differ, the broker has run since
without a clean shutdown. So the mark is never removed, only replaced. An old, damaged or missing mark proves nothing.

Law: the mark is written last, after everything was flushed. Each log has its own mark of a clean close
(`recovery-point`).
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
    """Write the mark in all log directories of a broker. Waits for the devices.

    Raises:
        DiskFullError, DiskFailedError, DiskAccessError: some directories have no mark of this epoch; the shutdown
            counts as unclean.
    """
    assert broker_epoch >= 0, f"broker epoch {broker_epoch}"
    content = encode_lines([f"broker_epoch {broker_epoch}"])
    for directory in directories:
        replace_file(directory.disk, f"{directory.path}/{CLEAN_STOP_FILE}", content)


def last_clean_stop(directories: Sequence[LogDirectory]) -> int | None:
    """Return the broker epoch of the last clean shutdown; None if it is unknown, or differs between the log directories."""
    epochs = {_read_epoch(directory) for directory in directories}
    return epochs.pop() if len(epochs) == 1 else None


def _read_epoch(directory: LogDirectory) -> int | None:
    try:
        lines = read_lines(directory.disk, f"{directory.path}/{CLEAN_STOP_FILE}")
    except DiskError:
        # The use of the directory will show what is wrong with it.
        return None
    found = [match for match in map(_EPOCH_LINE.fullmatch, lines or ()) if match is not None]
    return int(found[0][1]) if len(found) == 1 else None
