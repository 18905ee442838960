# SPDX-License-Identifier: Apache-2.0
"""What `verify` says about a log: findings, each with its place, and a report."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from storage.types import Boundary


class Severity(Enum):
    """How bad a finding is. All but notes make `verify` fail."""

    DAMAGE = "damage"
    """Records that cannot be served, and that nobody has put out of service yet."""
    LAW = "law"
    """The files contradict each other, or a file that is not a cache is damaged."""
    CACHE = "cache"
    """A file that can be built anew is damaged or says what is not true."""
    NOTE = "note"
    """Ordinary: what a crash leaves behind, known damage, what the next opening removes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was found.

    Attributes:
        severity: how bad it is.
        file: name of the file in its directory.
        message: what is wrong.
        base_offset: first offset concerned, inclusive; None if it is not about offsets.
        end_offset: end of these offsets, exclusive.
        position: first byte of the file concerned, inclusive; None if it is not about bytes.
        end_position: end of these bytes, exclusive; equal to `position` if they are missing.
    """

    severity: Severity
    file: str
    message: str
    base_offset: int | None = None
    end_offset: int | None = None
    position: int | None = None
    end_position: int | None = None


@dataclass(slots=True, kw_only=True)
class LogReport:
    """What was found in one log, or in the files of a data directory beside the logs.

    Attributes:
        path: the directory.
        findings: in the order in which they were found.
        segment_count: segments judged.
        batch_count: whole batches, fillers included.
        record_count: records in them.
        verified_bytes: bytes of log files that were read and judged.
        log_start_offset: first offset that the log serves, inclusive.
        log_end_offset: end of the log, exclusive, as the next opening finds it.
        flushed_offset: what the recovery point says; None if it is missing or damaged.
        is_clean: the mark of a clean stop holds.
    """

    path: str
    findings: list[Finding] = field(default_factory=list[Finding])
    segment_count: int = 0
    batch_count: int = 0
    record_count: int = 0
    verified_bytes: int = 0
    log_start_offset: int = 0
    log_end_offset: int = 0
    flushed_offset: int | None = None
    is_clean: bool = False

    def add(
        self,
        severity: Severity,
        file: str,
        message: str,
        *,
        start: Boundary | None = None,
        end: Boundary | None = None,
    ) -> None:
        """Add a finding; `start` (inclusive) and `end` (exclusive) come together."""
        self.findings.append(
            Finding(
                severity=severity,
                file=file,
                message=message,
                base_offset=start.offset if start is not None else None,
                end_offset=end.offset if end is not None else None,
                position=start.position if start is not None else None,
                end_position=end.position if end is not None else None,
            )
        )

    def failures(self, *, strict: bool) -> list[Finding]:
        """Return the findings that make `verify` fail; with `strict` notes do too."""
        return [finding for finding in self.findings if strict or finding.severity is not Severity.NOTE]
