# SPDX-License-Identifier: Apache-2.0
"""The tools and the checkpoint of high watermarks: shown alone, judged with its data directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.directory.high_watermarks import write_high_watermarks
from storage.files.checkpoints import encode_lines
from storage.files.names import HIGH_WATERMARK_FILE
from storage.files.posix import PosixDisk
from storage.inspect.findings import Severity
from storage.inspect.formats import MalformedError
from storage.inspect.texts import parse_high_watermarks
from storage.inspect.verify import verify_path
from storage.tests.inspect.command import rows, run
from storage.tests.inspect.logs import flip

NAMES = (f"{'0a' * 16}-1", f"{'0b' * 16}-0")


def written(root: Path) -> Path:
    """Write a checkpoint with two partitions."""
    write_high_watermarks(PosixDisk(), str(root), {NAMES[1]: 2**63 - 1, NAMES[0]: 12})
    return root / HIGH_WATERMARK_FILE


def found_in(root: Path) -> list[tuple[Severity, str]]:
    """Return the findings of the data directory about the checkpoint."""
    report = next(iter(verify_path(str(root))))
    return [(each.severity, each.message) for each in report.findings if each.file == HIGH_WATERMARK_FILE]


def test_dump_shows_each_partition(data: Path) -> None:
    """One row for each, ascending; a damaged file is refused with the reason."""
    path = written(data)
    assert [(row["type"], row["partition"], row["high_watermark"]) for row in rows("dump", path)] == [
        ("high_watermark", NAMES[0], 12),
        ("high_watermark", NAMES[1], 2**63 - 1),
    ]
    flip(path, 10)
    code, _, err = run("dump", path)
    assert code == 1
    assert "damaged" in err


def test_verify_judges_it_as_a_cache(data: Path) -> None:
    """Complete: no finding. Changed: an unused cache. Never written, as after a power failure: a note."""
    assert found_in(data) == []
    path = written(data)
    assert found_in(data) == []
    assert run("verify", path)[0] == 0
    flip(path, 10)
    ((severity, message),) = found_in(data)
    assert severity is Severity.CACHE
    assert message.startswith("it is damaged: its last line is ")
    assert run("verify", path)[0] == 1
    path.write_bytes(b"")
    assert [severity for severity, _ in found_in(data)] == [Severity.NOTE]


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([NAMES[0]], "not one partition and its high watermark"),
        ([f"{NAMES[0]} x"], "not one partition and its high watermark"),
        ([f"{NAMES[0]} {2**63}"], "not one partition and its high watermark"),
        ([f"{NAMES[0]} {'9' * 20}"], "not one partition and its high watermark"),
        ([f"{NAMES[0]}.removed 1"], "not one partition and its high watermark"),
        ([f"{NAMES[1]} 1", f"{NAMES[0]} 1"], f"{NAMES[0]} follows {NAMES[1]}"),
        ([f"{NAMES[0]} 1", f"{NAMES[0]} 1"], f"{NAMES[0]} follows {NAMES[0]}"),
    ],
)
def test_broken_checkpoints_are_refused(lines: list[str], reason: str) -> None:
    """Each rule of the page has its own reason."""
    with pytest.raises(MalformedError, match=reason):
        parse_high_watermarks(encode_lines(lines))
