# SPDX-License-Identifier: Apache-2.0
"""Real logs on a real file system, damaged in known places, for the tests of the inspection tools."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from pathlib import Path

from lograft.wire.checksum import crc32c
from lograft.wire.header import CRC_START, BatchHeader, iter_batches

from storage.files.names import LOG_SUFFIX, PartitionIdentity, offset_file_name, partition_directory_name
from storage.files.posix import PosixDisk
from storage.files.rate_limit import RateLimit
from storage.inspect.findings import Finding, LogReport, Severity
from storage.inspect.log_check import check_log
from storage.log.partition_log import PartitionLog
from storage.maintenance.scrub import LogScrub
from storage.testing.builders import SMALL, ProducerStamp, append

IDENTITY = PartitionIdentity(bytes(range(16)), 3)
SETTINGS = replace(SMALL, segment_bytes=2_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The place of a batch."""

    segment_base_offset: int
    position: int
    header: BatchHeader


def open_partition(parent: Path) -> PartitionLog:
    """Open (or make) the log of `IDENTITY` below a directory."""
    directory = f"{parent}/{partition_directory_name(IDENTITY)}"
    return PartitionLog.open(PosixDisk(), directory, settings=SETTINGS, now_ms=0, identity=IDENTITY).log


def fill(log: PartitionLog, count: int = 40) -> None:
    """Append batches of one to three records: two producers and none, rising epochs, timestamps that sometimes go back."""
    sequences = [0, 0]
    for number in range(count):
        producer, record_count = number % 3, 1 + number % 3
        stamp = None
        if producer < len(sequences):
            stamp = ProducerStamp(producer_id=producer, base_sequence=sequences[producer])
            sequences[producer] += record_count
        append(
            log,
            [b"value-%04d" % number * 5] * record_count,
            leader_epoch=number // 15,
            timestamp_ms=1_000 + (number * 37) % 100,
            producer=stamp,
        )


def make_log(parent: Path, *, clean: bool = True, sealed: bool = False) -> Path:
    """Write a log of several segments, flushed and closed; return its directory."""
    log = open_partition(parent)
    fill(log)
    log.flush()
    if sealed:
        scrub(log)
    log.close(clean=clean)
    return Path(log.directory)


def scrub(log: PartitionLog) -> None:
    """Check every sealed segment once, and seal it."""
    scrub = LogScrub(log)
    rate = RateLimit(10**9, now_ms=lambda: 0, wait_ms=lambda wait_ms: False)
    while (work := scrub.begin(flushed_offset=log.flushed_offset, now_ms=0, interval_ms=1)) is not None:
        work.run(rate)
        scrub.end(work, flushed_offset=log.flushed_offset, now_ms=0)


def places(directory: Path) -> list[Place]:
    """Return the place of every batch of a complete log, ascending."""
    return [
        Place(segment_base_offset=int(path.stem), position=position, header=header)
        for path in segments(directory)
        for position, header in iter_batches(path.read_bytes())
    ]


def segments(directory: Path) -> list[Path]:
    return sorted(directory.glob(f"*{LOG_SUFFIX}"))


def segment_path(directory: Path, base_offset: int, suffix: str = LOG_SUFFIX) -> Path:
    return directory / offset_file_name(base_offset, suffix)


def flip(path: Path, position: int, mask: int = 0x40) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= mask
    path.write_bytes(content)


def check(directory: Path) -> LogReport:
    return check_log(str(directory), expected=IDENTITY)


def failures(directory: Path) -> list[Finding]:
    return check(directory).failures(strict=False)


def damage(directory: Path) -> list[tuple[int | None, int | None]]:
    """Return the offset ranges with a damage finding; check that there is no other finding."""
    found = failures(directory)
    assert all(finding.severity is Severity.DAMAGE for finding in found), found
    return [(finding.base_offset, finding.end_offset) for finding in found]


def fingerprint(directory: Path) -> dict[str, tuple[bytes, int, int]]:
    """Return content, modification time and mode of everything below a directory."""
    return {
        str(path.relative_to(directory)): (
            path.read_bytes() if path.is_file() else b"",
            path.stat().st_mtime_ns,
            path.stat().st_mode,
        )
        for path in sorted(directory.rglob("*"))
    }


def only(found: list[Finding]) -> Finding:
    assert len(found) == 1, found
    return found[0]


def change_batch(path: Path, position: int, at: int, data: bytes, size_bytes: int) -> None:
    """Overwrite bytes of a batch and correct its CRC."""
    content = bytearray(path.read_bytes())
    content[position + at : position + at + len(data)] = data
    body = bytes(content[position + CRC_START : position + size_bytes])
    struct.pack_into(">I", content, position + 17, crc32c(body))
    path.write_bytes(content)
