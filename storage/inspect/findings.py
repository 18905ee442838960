# SPDX-License-Identifier: Apache-2.0
"""The result of `verify` for a log: a report with findings, each with its place."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from storage.types import Boundary


class Severity(Enum):
    """Severity of a finding. Every value except NOTE makes `verify` fail."""

    DAMAGE = "damage"
    """Records that cannot be served and are not quarantined yet."""
    LAW = "law"
    """The files contradict each other, or a file that is not a cache is damaged."""
    CACHE = "cache"
    """A file that can be rebuilt is damaged or has wrong content."""
    NOTE = "note"
    """Normal: the remains of a crash, known damage, files that the next opening removes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One finding.

    Attributes:
        severity: its severity.
        file: name of the file in its directory.
        message: what is wrong.
        base_offset: first affected offset, inclusive; None if it concerns no offsets.
        end_offset: end of the affected offsets, exclusive.
        position: first affected byte of the file, inclusive; None if it concerns no bytes.
        end_position: end of the affected bytes, exclusive; equal to `position` if they are missing.
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
    """The findings in one log, or in the files of a data directory beside its logs.

    Attributes:
        path: the directory.
        findings: the findings, in the order of discovery.
        segment_count: number of judged segments.
        batch_count: number of complete batches, including fillers.
        record_count: number of records in them.
        verified_bytes: bytes of log files that were read and judged.
        log_start_offset: first offset that the log serves, inclusive.
        log_end_offset: end of the log, exclusive, as the next opening will find it.
        flushed_offset: flushed offset by the recovery point; None if that is missing or damaged.
        is_clean: True if the mark of a clean close is valid.
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
        """Add a finding; `start` (inclusive) and `end` (exclusive) are given together."""
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
        """Return the findings that make `verify` fail, with `strict` all findings."""
        return [finding for finding in self.findings if strict or finding.severity is not Severity.NOTE]
