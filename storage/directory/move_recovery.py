# SPDX-License-Identifier: Apache-2.0
"""Settles interrupted moves at a start; afterwards exactly one directory holds each log.

`settle_partition` decides from the directories that exist (pure). `settle_moves` lists them and carries out the
decisions, in the order of the steps.

Rules, for one partition
    `moved-to` in its directory
        The copy that the mark names is the log. It gets the name if it has none yet, and the marked directory is
        removed. If that copy does not exist (its directory was emptied or is gone for good), the mark is removed, with
        a warning.
    `moved-from` in its directory
        If a second directory of the partition has no such mark, the move was revoked, and the marked directory is
        removed (unless the source of the move was retired). Otherwise the mark is removed, once its source is a
        directory of this broker.
    `-future`
        Unfinished: removed.
    `-moved`
        Removed if another directory holds the log.
A directory is renamed before it is removed, so that a half-removed one never counts as a log.
Everything found is synced before the decision. A killed process leaves names only in the page cache, and a power
failure must not undo a name that the decision rests on.

Source: docs/storage.md section 11.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum

from storage.files.names import (
    FUTURE_SUFFIX,
    MOVED_FROM_FILE,
    MOVED_SUFFIX,
    MOVED_TO_FILE,
    move_directory_name,
    parse_move_directory_name,
    parse_partition_directory_name,
)

from .move_marks import MoveEnd, MoveMark, place, read_mark, remove_directory_with_files, retire, revoke, settle

logger = logging.getLogger(__name__)


class Step(Enum):
    """A step on one directory of a partition; the steps run in this order."""

    PLACE = "finish the move: give the copy its name"
    RETIRE = "take the name of what is not the log"
    REVOKE = "forget a move whose copy is gone"
    SETTLE = "forget where the log came from"
    REMOVE = "remove what is left of a move"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One directory that belongs to a partition.

    Attributes:
        directory_id: the log directory that contains it.
        suffix: empty if it has the partition's name, else `-future` or `-moved`.
        move_id: the move of a future or retired directory.
        moved_to: the mark in a directory with the partition's name.
        moved_from: the mark in a directory with the partition's name.
    """

    directory_id: bytes
    suffix: str = ""
    move_id: bytes = b""
    moved_to: MoveMark | None = None
    moved_from: MoveMark | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One step on one directory; `move_id` identifies the directory to place, retire or remove."""

    step: Step
    directory_id: bytes
    move_id: bytes = b""
    suffix: str = ""


def settle_partition(places: Sequence[Place], directory_ids: Collection[bytes]) -> list[Action]:
    """Return the actions for one partition, in order.

    Args:
        places: all directories that belong to it.
        directory_ids: the log directories of this start.
    """
    logs = {each.directory_id: each for each in places if not each.suffix}
    futures = {(each.directory_id, each.move_id) for each in places if each.suffix == FUTURE_SUFFIX}
    decided: set[tuple[bytes, bytes]] = set()
    actions: list[Action] = []
    for directory_id, log in list(logs.items()):
        if log.moved_to is None:
            continue
        move_id, target_id = log.moved_to
        if target_id not in logs and (target_id, move_id) in futures:
            futures.discard((target_id, move_id))
            actions.append(Action(step=Step.PLACE, directory_id=target_id, move_id=move_id))
            logs[target_id] = Place(directory_id=target_id, moved_from=MoveMark(move_id, directory_id))
        if target_id in logs:
            del logs[directory_id]
            decided.add((directory_id, move_id))
            actions.append(Action(step=Step.RETIRE, directory_id=directory_id, move_id=move_id))
        else:
            actions.append(Action(step=Step.REVOKE, directory_id=directory_id))
    actions += _settle_copies(places, logs, decided, directory_ids)
    leftovers = [each for each in places if each.suffix and (each.suffix != FUTURE_SUFFIX or _key(each) in futures)]
    if logs:
        actions += [
            Action(step=Step.REMOVE, directory_id=each.directory_id, move_id=each.move_id, suffix=each.suffix)
            for each in leftovers
        ]
    order = list(Step)
    return sorted(actions, key=lambda action: order.index(action.step))


def _key(each: Place) -> tuple[bytes, bytes]:
    return each.directory_id, each.move_id


def _settle_copies(
    places: Sequence[Place],
    logs: dict[bytes, Place],
    decided: set[tuple[bytes, bytes]],
    directory_ids: Collection[bytes],
) -> list[Action]:
    """Decide on the logs with the mark `moved-from`; remove those of revoked moves from `logs`."""
    sure = decided | {_key(each) for each in places if each.suffix == MOVED_SUFFIX}
    actions: list[Action] = []
    unsure: dict[bytes, MoveMark] = {}
    for directory_id, log in logs.items():
        if log.moved_from is None:
            continue
        if (log.moved_from.directory_id, log.moved_from.move_id) in sure:
            actions.append(Action(step=Step.SETTLE, directory_id=directory_id))
        else:
            unsure[directory_id] = log.moved_from
    has_other = len(logs) > len(unsure)
    for directory_id, mark in unsure.items():
        if has_other:
            del logs[directory_id]
            actions.append(Action(step=Step.RETIRE, directory_id=directory_id, move_id=mark.move_id))
        elif mark.directory_id in directory_ids:
            actions.append(Action(step=Step.SETTLE, directory_id=directory_id))
    return actions


def settle_moves(ends: Sequence[MoveEnd]) -> None:
    """Finish or undo every interrupted move. Blocks; to be called before any log is open.

    Raises:
        StorageError: a directory cannot be listed, read or written.
    """
    by_id = {end.directory_id: end for end in ends}
    for name, places in _find_places(ends).items():
        for action in settle_partition(places, by_id):
            _carry_out(by_id[action.directory_id], name, action)


def _find_places(ends: Sequence[MoveEnd]) -> dict[str, list[Place]]:
    """Return the directories of each partition that a move has touched; only these read marks."""
    found: dict[str, list[Place]] = {}
    touched: set[str] = set()
    listed: dict[str, list[MoveEnd]] = {}
    for end in ends:
        end.disk.sync_directory(end.partitions_path)
        for name in end.disk.list_directory(end.partitions_path):
            side = parse_move_directory_name(name)
            if side is not None:
                touched.add(side.partition_name)
                place_of = Place(directory_id=end.directory_id, suffix=side.suffix, move_id=side.move_id)
                found.setdefault(side.partition_name, []).append(place_of)
            elif parse_partition_directory_name(name) is not None:
                listed.setdefault(name, []).append(end)
                if _has_mark(end, name):
                    touched.add(name)
    for name in sorted(touched):
        found.setdefault(name, []).extend(_read_place(end, name) for end in listed.get(name, []))
    return found


def _has_mark(end: MoveEnd, name: str) -> bool:
    path = f"{end.partitions_path}/{name}"
    return end.disk.exists(f"{path}/{MOVED_TO_FILE}") or end.disk.exists(f"{path}/{MOVED_FROM_FILE}")


def _read_place(end: MoveEnd, name: str) -> Place:
    path = f"{end.partitions_path}/{name}"
    end.disk.sync_directory(path)
    return Place(
        directory_id=end.directory_id,
        moved_to=read_mark(end.disk, f"{path}/{MOVED_TO_FILE}"),
        moved_from=read_mark(end.disk, f"{path}/{MOVED_FROM_FILE}"),
    )


def _carry_out(end: MoveEnd, name: str, action: Action) -> None:
    path = f"{end.partitions_path}/{name}"
    logger.warning("interrupted move of a partition: directory=%s action=%s", path, action.step.value)
    match action.step:
        case Step.PLACE:
            place(end.disk, end.partitions_path, name, action.move_id)
        case Step.RETIRE:
            remove_directory_with_files(end.disk, retire(end.disk, end.partitions_path, name, action.move_id))
        case Step.REVOKE:
            revoke(end.disk, path)
        case Step.SETTLE:
            settle(end.disk, path)
        case Step.REMOVE:
            left = move_directory_name(name, action.move_id, action.suffix)
            remove_directory_with_files(end.disk, f"{end.partitions_path}/{left}")
