# SPDX-License-Identifier: Apache-2.0
"""The suite that every `Disk` must pass: subclass `DiskConformance` and give it the fixtures `disk` and `root`.

`root` is an existing empty directory on that disk. The suite tests only the guarantees of `storage.files.disk`.
"""

from __future__ import annotations

import pytest

from storage.errors import DiskAccessError, FileExistsInDiskError, FileMissingError, LockHeldError
from storage.files.disk import Disk


class DiskConformance:
    """Each test covers one behaviour of `Disk` or `File`."""

    def test_append_parts_then_read(self, disk: Disk, root: str) -> None:
        """Parts are written one after the other, and every range can be read back."""
        file = disk.create_file(f"{root}/a")
        file.append([b"one", bytearray(b"two"), memoryview(b"-three")[1:]])
        file.append([b"four"])
        assert file.size == 15
        assert file.pread(100, 0) == b"onetwothreefour"
        assert file.pread(5, 6) == b"three"
        assert file.pread(5, 13) == b"ur"
        assert file.pread(5, 15) == b""
        file.close()
        file.close()

    def test_reopened_file_continues_at_its_end(self, disk: Disk, root: str) -> None:
        """A file that is opened again has its size, and appends go to its end."""
        file = disk.create_file(f"{root}/a")
        file.append([b"first"])
        file.close()
        again = disk.open_file(f"{root}/a")
        assert again.size == 5
        again.append([b"second"])
        assert again.pread(11, 0) == b"firstsecond"
        assert disk.size_bytes(f"{root}/a") == 11
        assert disk.read_file(f"{root}/a") == b"firstsecond"
        again.close()

    def test_write_in_place(self, disk: Disk, root: str) -> None:
        """Overwriting changes the bytes but not the size."""
        file = disk.create_file(f"{root}/a")
        file.append([b"0123456789"])
        file.write(b"abc", 4)
        assert file.pread(10, 0) == b"0123abc789"
        with pytest.raises(AssertionError):
            file.write(b"abc", 8)
        file.close()

    def test_truncate_then_append(self, disk: Disk, root: str) -> None:
        """Truncated bytes do not come back behind appended ones."""
        file = disk.create_file(f"{root}/a")
        file.append([b"0123456789"])
        file.truncate(4)
        file.sync()
        file.append([b"x"])
        assert file.pread(10, 0) == b"0123x"
        with pytest.raises(AssertionError):
            file.truncate(6)
        file.close()

    def test_create_existing_is_refused(self, disk: Disk, root: str) -> None:
        """Creating never opens an existing file."""
        disk.create_file(f"{root}/a").close()
        with pytest.raises(FileExistsInDiskError, match="exists"):
            disk.create_file(f"{root}/a")

    @pytest.mark.parametrize("call", ["open_file", "read_file", "remove", "list_directory", "size_bytes", "free_bytes"])
    def test_missing_path_is_typed(self, disk: Disk, root: str, call: str) -> None:
        """Every call on a missing path raises a typed error with the path."""
        with pytest.raises(FileMissingError, match="no such") as caught:
            getattr(disk, call)(f"{root}/nothing")
        assert caught.value.path == f"{root}/nothing"

    def test_missing_parent_is_typed(self, disk: Disk, root: str) -> None:
        """Nothing is created under a missing directory."""
        for call in (disk.create_file, disk.make_directory, disk.lock):
            with pytest.raises(FileMissingError):
                call(f"{root}/nothing/a")

    def test_rename_replaces(self, disk: Disk, root: str) -> None:
        """A rename replaces the target at once; an open file of the old target keeps its content."""
        old = disk.create_file(f"{root}/target")
        old.append([b"old"])
        new = disk.create_file(f"{root}/source")
        new.append([b"new"])
        disk.rename(f"{root}/source", f"{root}/target")
        disk.sync_directory(root)
        assert disk.list_directory(root) == ["target"]
        assert disk.read_file(f"{root}/target") == b"new"
        assert old.pread(3, 0) == b"old"
        old.close()
        new.close()
        with pytest.raises(FileMissingError):
            disk.rename(f"{root}/source", f"{root}/target")

    def test_removed_file_can_still_be_read_through_its_handle(self, disk: Disk, root: str) -> None:
        """Removing takes away the name, not the content under an open handle."""
        file = disk.create_file(f"{root}/a")
        file.append([b"kept"])
        disk.remove(f"{root}/a")
        assert not disk.exists(f"{root}/a")
        assert file.pread(4, 0) == b"kept"
        file.sync()
        file.close()

    def test_directories(self, disk: Disk, root: str) -> None:
        """Making is idempotent, listing is sorted, removing needs an empty directory."""
        disk.make_directory(f"{root}/d")
        disk.make_directory(f"{root}/d")
        for name in ("b", "a", "c"):
            disk.create_file(f"{root}/d/{name}").close()
        assert disk.list_directory(f"{root}/d") == ["a", "b", "c"]
        with pytest.raises(DiskAccessError):
            disk.remove_directory(f"{root}/d")
        for name in ("b", "a", "c"):
            disk.remove(f"{root}/d/{name}")
        disk.remove_directory(f"{root}/d")
        disk.sync_directory(root)
        assert disk.list_directory(root) == []
        with pytest.raises(FileMissingError):
            disk.remove_directory(f"{root}/d")
        with pytest.raises(FileMissingError):
            disk.sync_directory(f"{root}/d")

    def test_the_whole_file_system_is_synced_at_once_where_that_is_offered(self, disk: Disk, root: str) -> None:
        """Files and names of several directories are covered; files stay usable; a missing path is typed."""
        disk.make_directory(f"{root}/d")
        file = disk.create_file(f"{root}/d/a")
        file.append([b"one"])
        if disk.sync_filesystem(root):
            file.append([b"two"])
            assert disk.sync_filesystem(f"{root}/d")
        assert file.pread(6, 0).startswith(b"one")
        file.close()

    def test_file_in_place_of_a_directory_is_typed(self, disk: Disk, root: str) -> None:
        """A file is not a directory, and the error says so."""
        disk.create_file(f"{root}/a").close()
        with pytest.raises(DiskAccessError):
            disk.make_directory(f"{root}/a")
        with pytest.raises(DiskAccessError):
            disk.list_directory(f"{root}/a")
        with pytest.raises(DiskAccessError):
            disk.create_file(f"{root}/a/b")
        with pytest.raises(DiskAccessError):
            disk.open_file(root)
        with pytest.raises(DiskAccessError):
            disk.sync_directory(f"{root}/a")

    def test_lock_is_exclusive_until_released(self, disk: Disk, root: str) -> None:
        """A second holder is refused at once; after a release the lock is free; a second release is allowed."""
        lock = disk.lock(f"{root}/lock")
        with pytest.raises(LockHeldError, match="another process"):
            disk.lock(f"{root}/lock")
        lock.release()
        lock.release()
        disk.lock(f"{root}/lock").release()

    def test_free_bytes(self, disk: Disk, root: str) -> None:
        """Free space is a number above zero on a disk that is not full."""
        assert disk.free_bytes(root) > 0
        assert disk.failure is None
