# SPDX-License-Identifier: Apache-2.0
"""Mutants of the log and the vote file: mistakes about the disk, found by `sim_store` under `tear_storm` and `rot_storm`.

Owns the list; `mutants` defines and applies a mutant.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from metaquorum.replica import election_store, log_store
from metaquorum.testing.mutants import Mutant
from metaquorum.testing.options import rot_storm, tear_storm
from storage.files import checkpoints
from storage.log import flush, partition_log, reader, recovery_walk
from storage.segment import scan, segment

_TearMutant = partial(Mutant, options=tear_storm)
_RotMutant = partial(Mutant, options=rot_storm)

DISK_MUTANTS: Final = (
    _TearMutant(
        name="a torn batch at the end is taken for a whole one",
        owner=scan.Walk,
        function="_check",
        old="if crc32c(whole[CRC_START:]) != header.crc:",
        new="if False:",
    ),
    _RotMutant(
        name="damage below the flushed offset is cut like a torn tail",
        owner=recovery_walk.UncleanWalk,
        function="_judge",
        old="if bad.offset < self._flushed_offset:\n        return True",
        new="if bad.offset < self._flushed_offset:\n        return False",
    ),
    _RotMutant(
        name="a node starts on a damaged log",
        owner=log_store.LogStore,
        function="_refuse_damage",
        old="if self._log.damaged:",
        new="if False:",
    ),
    _RotMutant(
        name="a batch is served without a look at its checksum",
        owner=reader.LogReader,
        function="__init__",
        old="self.verify = settings.verify_first_read",
        new="self.verify = False",
    ),
    _RotMutant(
        name="a batch is served without a look at its epoch",
        owner=log_store.LogStore,
        function="_walk",
        old="if header.leader_epoch != known and",
        new="if False and",
    ),
    _RotMutant(
        name="a voter whose vote file is damaged starts with a fresh one",
        owner=election_store.ElectionStore,
        function="load",
        old="    if not good:\n",
        new="    if not good:\n        return INITIAL_ELECTION_STATE\n    if not good:\n",
    ),
    _RotMutant(
        name="only one copy of the vote file is written",
        owner=election_store.ElectionStore,
        function="_write",
        old="in self._paths:",
        new="in self._paths[: 2 if self._sequence == 0 else 1]:",
    ),
    _TearMutant(
        name="the vote file is replaced by one that is not synced",
        owner=checkpoints,
        function="write_replacement",
        old="        if durable:\n            file.sync()\n",
        new="",
    ),
    _TearMutant(
        name="a flush does not wait for the disk",
        owner=flush.FlushWork,
        function="run",
        old="file.sync()",
        new="pass",
    ),
    _TearMutant(
        name="a new segment counts before its name is on the disk",
        owner=flush.FlushWork,
        function="run",
        old="elif self._sync_directory:",
        new="elif False:",
    ),
    _TearMutant(
        name="a truncation is not synced",
        owner=segment.Segment,
        function="truncate",
        old="file.sync()",
        new="pass",
    ),
    _TearMutant(
        name="the recovery point covers what is not flushed",
        owner=partition_log.PartitionLog,
        function="end_flush",
        old="RecoveryPoint(flushed_offset=end_offset)",
        new="RecoveryPoint(flushed_offset=end_offset + 2)",
    ),
)
"""All mutants of the files."""
