# SPDX-License-Identifier: Apache-2.0
"""A replacement for RocksDB: databases of rows in memory, each with a file in a directory of the real machine.

Owns what survives a process. After `kill -9` every write survives, because it was in the page cache. After a power loss either the
state of the last flush survives, or everything. In both cases it is the image of one offset, as with RocksDB, whose batches are
atomic. A directory with one file can be linked, renamed and removed by the real code, which treats snapshots as directories.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import struct
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final
from unittest import mock

import metaquorum.metadata.image_store
import metaquorum.metadata.snapshot_files
import metaquorum.metadata.snapshot_rows
import metaquorum.replica.snapshot_server
import metaquorum.replica.snapshot_shell
from integration_tests.simulation.process import current_process
from metaquorum.metadata.snapshot_rows import split_rows

ROWS_FILE: Final = "rows"
"""The only file of a database."""

_LENGTHS: Final = struct.Struct(">II")


class VirtualWriteBatch:
    """Replaces `WriteBatch`."""

    def __init__(self, *, raw_mode: bool) -> None:
        assert raw_mode, "keys and values are bytes"
        self.changes: list[tuple[bytes, bytes | None]] = []

    def put(self, key: bytes, value: bytes) -> None:
        """Add a write (see `WriteBatch.put`)."""
        self.changes.append((key, value))

    def delete(self, key: bytes) -> None:
        """Add a deletion (see `WriteBatch.delete`)."""
        self.changes.append((key, None))


class VirtualIterator:
    """Replaces an iterator of RocksDB. It covers the rows as they were at its creation."""

    def __init__(self, rows: dict[bytes, bytes]) -> None:
        self._rows = sorted(rows.items())
        self._at = 0

    def seek_to_first(self) -> None:
        """Go to the first row."""
        self._at = 0

    def valid(self) -> bool:
        """Return True if it is at a row."""
        return self._at < len(self._rows)

    def key(self) -> bytes:
        """Key of the row."""
        return self._rows[self._at][0]

    def value(self) -> bytes:
        """Value of the row."""
        return self._rows[self._at][1]

    def next(self) -> None:
        """Go to the next row."""
        self._at += 1

    def status(self) -> None:
        """Do nothing: no data is ever damaged here."""


class VirtualDatabase:
    """Replaces `Rdict`.

    Args:
        databases: all databases; it is registered there.
        directory: directory of its file; it is created if missing, unless the database is read only.
        is_read_only: True if it is only read. Any number of readers may have it open.

    Raises:
        Exception: as in RocksDB: another writer has it open, it does not exist, or there is no space to write.
    """

    def __init__(self, databases: Databases, directory: Path, *, is_read_only: bool) -> None:
        self._file = directory / ROWS_FILE
        self._databases = databases
        self._is_closed = False
        self.directory = directory
        self.rows: dict[bytes, bytes] = {}
        if self._file.exists():
            self.rows = dict(split_rows(self._file.read_bytes()))
        elif is_read_only:
            raise Exception(f"{directory}: no such database")
        self._is_saved = self._file.exists()
        if not is_read_only:
            databases.require_room(directory)
            databases.add(self)
            directory.mkdir(parents=True, exist_ok=True)

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key (see `Rdict.get`)."""
        return self.rows.get(key)

    def put(self, key: bytes, value: bytes) -> None:
        """Write a row (see `Rdict.put`)."""
        assert not self._is_closed, f"{self.directory} is closed"
        self._databases.require_room(self.directory)
        self._is_saved = False
        self.rows[key] = value

    def write(self, batch: VirtualWriteBatch) -> None:
        """Write a batch (see `Rdict.write`)."""
        assert not self._is_closed, f"{self.directory} is closed"
        self._databases.require_room(self.directory)
        self._is_saved = False
        for key, value in batch.changes:
            if value is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = value

    def iter(self, _read_options: object = None) -> VirtualIterator:
        """Return an iterator (see `Rdict.iter`); there is no cache to which options would apply."""
        return VirtualIterator(self.rows)

    def flush(self) -> None:
        """Write the rows to the file (see `Rdict.flush`)."""
        if not self._is_saved:
            self._is_saved = True
            self._file.write_bytes(_content(self.rows))

    def close(self) -> None:
        """Close the database (see `Rdict.close`). Everything written survives, because it is in the page cache."""
        if not self._is_closed:
            self._is_closed = True
            self._databases.remove(self)
            if self.directory.exists():
                self.flush()

    def drop(self) -> None:
        """Drop the database with everything that was not flushed."""
        self._is_closed = True


class VirtualCheckpoint:
    """Replaces `Checkpoint`."""

    def __init__(self, database: VirtualDatabase) -> None:
        self._database = database

    def create_checkpoint(self, directory: str) -> None:
        """Copy the rows to a directory (see `Checkpoint.create_checkpoint`)."""
        path = Path(directory)
        path.mkdir()
        (path / ROWS_FILE).write_bytes(_content(self._database.rows))


class Databases:
    """The databases of all simulated machines, below one directory of the real machine.

    Args:
        rng: source of chance for what a power loss leaves.
        on_refusal: called when a write finds no space.
    """

    def __init__(self, rng: random.Random, *, on_refusal: Callable[[], None] | None = None) -> None:
        self._rng = rng
        self._on_refusal = on_refusal
        self._root = Path()
        self._full: set[str] = set()
        self._open: dict[Path, VirtualDatabase] = {}
        self._shelf_count = 0

    def begin(self, root: Path) -> None:
        """Set the directory of the files."""
        self._root = root

    def directory(self, machine: str) -> Path:
        """Return the metadata directory of a machine."""
        return self._root / machine

    def fill(self, machine: str) -> None:
        """Leave no space for databases on a machine."""
        self._full.add(machine)

    def make_room(self, machine: str) -> None:
        """Make space again."""
        self._full.discard(machine)

    def has_room(self, directory: Path) -> bool:
        """Return True if a database below a directory may be written."""
        return not any(directory.is_relative_to(self.directory(machine)) for machine in self._full)

    def require_room(self, directory: Path) -> None:
        """Return if a database below a directory may be written.

        Raises:
            Exception: there is no space; the text is that of RocksDB.
        """
        if not self.has_room(directory):
            if self._on_refusal is not None:
                self._on_refusal()
            raise Exception(f"IO error: {os.strerror(errno.ENOSPC)}: While appending to file: {directory}")

    def add(self, database: VirtualDatabase) -> None:
        """Register a database that is open for writing.

        Raises:
            Exception: it is open already.
        """
        if database.directory in self._open:
            raise Exception(f"{database.directory}: somebody holds the lock")
        self._open[database.directory] = database

    def remove(self, database: VirtualDatabase) -> None:
        """Unregister a database that was closed."""
        if self._open.get(database.directory) is database:
            del self._open[database.directory]

    def end_process(self, machine: str, *, has_power: bool) -> None:
        """End the process of a machine: keep all that it wrote, or after a power loss what it had flushed and perhaps the rest."""
        for database in self._of(machine):
            if has_power or self._rng.random() < 0.5:
                database.close()
            else:
                self.remove(database)
                database.drop()

    def wipe(self, machine: str) -> None:
        """Replace the disk of a machine by an empty one."""
        self.end_process(machine, has_power=False)
        shutil.rmtree(self.directory(machine), ignore_errors=True)

    def shelve(self, machine: str) -> str:
        """Move the data of a machine without a process away, together with its disk. Return where it is."""
        self._shelf_count += 1
        shelf = f"shelf-{self._shelf_count}"
        if self.directory(machine).exists():
            self.directory(machine).rename(self._root / shelf)
        return shelf

    def unshelve(self, machine: str, shelf: str) -> None:
        """Give a machine its data back."""
        if (self._root / shelf).exists():
            (self._root / shelf).rename(self.directory(machine))

    def _of(self, machine: str) -> Sequence[VirtualDatabase]:
        directory = self.directory(machine)
        return [database for path, database in self._open.items() if path.is_relative_to(directory)]


class VirtualExecutor(Executor):
    """Replaces a `ThreadPoolExecutor` with one thread. The loop runs the work in order (`run_in_executor`)."""

    def __init__(self, max_workers: int = 1, **_options: object) -> None:
        assert max_workers == 1, "the order is kept for one thread only"
        self._max_workers = max_workers
        self._process = current_process()

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Queue work (see `Executor.submit`). Its result is not awaited."""
        return self._process.loop.run_in_executor(self, lambda: fn(*args, **kwargs))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Do nothing: queued work is done unless the process dies first."""


@contextmanager
def in_place(databases: Databases) -> Generator[None]:
    """Replace RocksDB, its threads and the syncs of real files for the metadata runtime."""

    def open_database(directory: str, options: object = None, access_type: object = None) -> VirtualDatabase:
        del options
        return VirtualDatabase(databases, Path(directory), is_read_only=access_type is not None)

    def no_sync(_path: Path, _flags: int) -> None:
        pass

    with ExitStack() as stack:

        def put(target: Any, name: str, value: Any) -> None:
            stack.enter_context(mock.patch.object(target, name, value))

        put(metaquorum.metadata.image_store, "Checkpoint", VirtualCheckpoint)
        put(metaquorum.metadata.image_store, "CURRENT_FILE", ROWS_FILE)
        put(metaquorum.metadata.image_store, "has_room", databases.has_room)
        for module in (metaquorum.metadata.image_store, metaquorum.metadata.snapshot_rows):
            put(module, "Rdict", open_database)
            put(module, "WriteBatch", VirtualWriteBatch)
        for module in (metaquorum.replica.snapshot_shell, metaquorum.replica.snapshot_server):
            put(module, "ThreadPoolExecutor", VirtualExecutor)
        put(metaquorum.metadata.snapshot_files, "_sync", no_sync)
        yield


def _content(rows: dict[bytes, bytes]) -> bytes:
    return b"".join(_LENGTHS.pack(len(key), len(value)) + key + value for key, value in rows.items())
