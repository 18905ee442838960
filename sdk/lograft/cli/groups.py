# SPDX-License-Identifier: Apache-2.0
"""`lograft groups`: list, describe and delete consumer groups, show, reset and delete their offsets.

This module owns the form of a file of offsets: lines `topic,partition,offset`, as Kafka's tool writes and reads them for one group.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final

import typer

from lograft.admin import Admin
from lograft.cli.admin_command import admin_command
from lograft.cli.completion import complete_group, complete_partition
from lograft.cli.options import Json, format_time, parse_partitions, parse_time_ms
from lograft.cli.output import counted, print_error, print_facts, print_json, print_note, print_table
from lograft.errors import LograftError
from lograft.types import (
    GroupDescription,
    GroupMember,
    GroupOffset,
    GroupState,
    MemberProgress,
    OffsetChange,
    ResetTo,
    TopicPartition,
)

groups_app: typer.Typer = typer.Typer(
    no_args_is_help=True, help="List, describe and delete consumer groups; move their offsets."
)

GroupName = Annotated[str, typer.Argument(metavar="GROUP", help="Group id.", autocompletion=complete_group)]
GroupNames = Annotated[list[str], typer.Argument(metavar="GROUP...", help="Group ids.", autocompletion=complete_group)]
Topics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic",
        "-t",
        metavar="TOPIC[:PARTITION]",
        help="Only this topic or partition; may be repeated.",
        autocompletion=complete_partition,
    ),
]

SHORT_ID: Final = 8
"""Characters of a member id in a table; --json has it whole."""

MAX_FILE_BYTES: Final = 64 * 1024 * 1024
"""Largest file of offsets that is read, in bytes."""

MAX_OFFSET_DIGITS: Final = 18
"""Digits of the largest offset and partition number that a file may have."""

STATES: Final = tuple(each.value for each in GroupState if each is not GroupState.UNKNOWN)
"""What --state takes."""

UNITS_MS: Final = {
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 24 * 3_600_000,
    "w": 7 * 24 * 3_600_000,
}
"""Milliseconds of each unit that a duration may have."""

_DURATION: Final = re.compile(r"(?:[0-9]{1,12}(?:ms|s|m|h|d|w))+")
_PART: Final = re.compile(r"([0-9]+)(ms|s|m|h|d|w)")


@admin_command(groups_app, Admin.list_groups, name="list")
def list_groups(
    admin: Admin,
    state: Annotated[
        list[str] | None, typer.Option("--state", help=f"Only groups that are {', '.join(STATES)}; may be repeated.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the consumer groups."""
    for each in state or ():
        if each not in STATES:
            raise typer.BadParameter(f"{each!r} is not one of {', '.join(STATES)}", param_hint="--state")
    found = admin.list_groups([GroupState(each) for each in state] if state else None)
    if as_json:
        groups = [{**asdict(each), "state": each.state.value} for each in found.groups]
        print_json({"groups": groups, "missing_coordinator_ids": list(found.missing_coordinator_ids)})
    else:
        print_table(
            counted(len(found.groups), "group"),
            ("group", "state", "members", "coordinator"),
            [(each.group, each.state.value, each.member_count, each.coordinator_id) for each in found.groups],
        )
    if found.missing_coordinator_ids:
        names = ", ".join("nobody yet" if each < 0 else f"broker {each}" for each in found.missing_coordinator_ids)
        print_error(f"the list lacks groups that are coordinated by {names}: no answer in time, try again")
        raise typer.Exit(1)


@admin_command(groups_app, Admin.describe_groups, Admin.group_offsets)
def describe(admin: Admin, groups: GroupNames, as_json: Json = False) -> None:
    """Show the members of groups, what they read, and how far each partition is behind."""
    described = admin.describe_groups(groups)
    offsets = {each.group: each for each in admin.group_offsets([each.group for each in described if not each.error])}
    if as_json:
        print_json(
            [
                {
                    **_group_as_json(each),
                    "offsets": [] if each.error else [_offset_as_json(one) for one in offsets[each.group].offsets],
                }
                for each in described
            ]
        )
    else:
        for number, each in enumerate(each for each in described if not each.error):
            if number:
                typer.echo()
            _print_group(each, offsets[each.group].offsets)
    errors = [each.error for each in described] + [each.error for each in offsets.values()]
    _end_with(errors)


@admin_command(groups_app, Admin.group_offsets)
def offsets(
    admin: Admin,
    group: GroupName,
    topics: Topics = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            dir_okay=False,
            help="Write lines topic,partition,offset to this file, for `reset --from-file`.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the committed offsets of a group, and how far each partition is behind; or write them to a file."""
    partitions = parse_partitions(topics) if topics else None
    (found,) = admin.group_offsets([group], partitions, with_lag=output is None)
    _end_with([found.error])
    if output is not None:
        count = _write_offsets(output, found.offsets)
        typer.echo(f"{counted(count, 'offset')} of group {group} in {output}")
    elif as_json:
        print_json([_offset_as_json(each) for each in found.offsets])
    else:
        _print_offsets(found.offsets, {})
    _end_with(each.error for each in found.offsets)


@admin_command(groups_app, Admin.delete_groups)
def delete(
    admin: Admin,
    groups: GroupNames,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Delete groups without members, and their offsets."""
    if not yes:
        what = f"group {groups[0]} and its offsets" if len(groups) == 1 else f"{len(groups)} groups and their offsets"
        typer.confirm(f"Delete {what}?", abort=True)
    results = admin.delete_groups(groups)
    if as_json:
        print_json(
            [{"group": each.group, "deleted": each.error is None, "error": _error(each.error)} for each in results]
        )
    else:
        for each in results:
            if each.error is None:
                typer.echo(f"group {each.group} is deleted")
    _end_with((each.error for each in results), names=[each.group for each in results])


@admin_command(groups_app, Admin.reset_group_offsets, Admin.alter_group_offsets)
def reset(
    admin: Admin,
    group: GroupName,
    topics: Topics = None,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the first readable record.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the end: only new records.")] = False,
    to_time: Annotated[
        str | None,
        typer.Option("--to-time", help="To the first record of a time or later: ISO 8601, or milliseconds since 1970."),
    ] = None,
    ago: Annotated[
        str | None, typer.Option("--ago", help="To the first record that is at most so old, such as 90s, 1h30m, 7d.")
    ] = None,
    shift_by: Annotated[
        int | None, typer.Option("--shift-by", help="So many offsets further, or back if negative.")
    ] = None,
    to_offset: Annotated[int | None, typer.Option("--to-offset", min=0, help="To this offset.")] = None,
    from_file: Annotated[
        Path | None,
        typer.Option(
            "--from-file", exists=True, dir_okay=False, help="To those of a file: lines topic,partition,offset."
        ),
    ] = None,
    backup: Annotated[
        Path | None,
        typer.Option("--backup", dir_okay=False, help="Write the present offsets to this file first, for --from-file."),
    ] = None,
    execute: Annotated[
        bool, typer.Option("--execute", help="Apply it. Without this, only show what would change.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Move the offsets of a group without members. Shows what would change; --execute applies it.

    Without --topic: all partitions that have an offset. Offsets outside of the readable records go to their beginning or end.
    """
    to = _place(
        to_earliest=to_earliest,
        to_latest=to_latest,
        to_time=to_time,
        ago=ago,
        shift_by=shift_by,
        to_offset=to_offset,
        from_file=from_file,
    )
    partitions = parse_partitions(topics) if topics else None
    if not isinstance(to, ResetTo) and partitions is not None:
        to = _of_topics(to, partitions)
        partitions = None
    plan = admin.reset_group_offsets(group, to, partitions, validate_only=True)
    if backup is not None:
        _backup(backup, plan)
    if execute:
        plan = _apply(admin, group, plan)
    if as_json:
        print_json({"group": group, "executed": execute, "changes": [_change_as_json(each) for each in plan]})
    else:
        _print_plan(group, plan, is_done=execute)
        if not execute:
            _advise(admin, group, plan)
    _end_with((each.error for each in plan), names=[f"{each.topic}:{each.partition}" for each in plan])


@admin_command(groups_app, Admin.delete_group_offsets, name="delete-offsets")
def delete_offsets(
    admin: Admin,
    group: GroupName,
    partitions: Annotated[
        list[str],
        typer.Argument(
            metavar="TOPIC[:PARTITION]...",
            help="Partitions; a topic alone: all that it has.",
            autocompletion=complete_partition,
        ),
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Delete offsets of topics that no member of the group subscribes to."""
    named = parse_partitions(partitions)
    if not yes:
        typer.confirm(f"Delete the offsets of group {group} in {', '.join(partitions)}?", abort=True)
    results = admin.delete_group_offsets(group, named)
    done = sum(each.error is None for each in results)
    if as_json:
        print_json(
            [{"topic": each.topic, "partition": each.partition, "error": _error(each.error)} for each in results]
        )
    elif done:
        typer.echo(f"group {group} has no offsets in {counted(done, 'partition')} any more")
    _end_with((each.error for each in results), names=[f"{each.topic}:{each.partition}" for each in results])


# Places.


def _place(
    *,
    to_earliest: bool,
    to_latest: bool,
    to_time: str | None,
    ago: str | None,
    shift_by: int | None,
    to_offset: int | None,
    from_file: Path | None,
) -> ResetTo | dict[TopicPartition, int]:
    """Return where the offsets are to go; exactly one option says it.

    Raises:
        typer.BadParameter: none does, or several do, or one has no valid value.
    """
    given = (to_earliest, to_latest, *(each is not None for each in (to_time, ago, shift_by, to_offset, from_file)))
    if sum(given) != 1:
        raise typer.BadParameter(
            "give one of --to-earliest, --to-latest, --to-time, --ago, --shift-by, --to-offset, --from-file"
        )
    if from_file is not None:
        return read_offsets(from_file)
    if to_time is not None:
        return ResetTo.time(parse_time_ms(to_time, "--to-time"))
    if ago is not None:
        return ResetTo.ago(parse_duration(ago, "--ago"))
    if shift_by is not None:
        return ResetTo.shift(shift_by)
    if to_offset is not None:
        return ResetTo.offset(to_offset)
    return ResetTo.earliest() if to_earliest else ResetTo.latest()


def parse_duration(text: str, option: str) -> timedelta:
    """Return a duration such as 90s, 1h30m or 7d. The units are w, d, h, m, s and ms.

    Raises:
        typer.BadParameter: the text is none.
    """
    if _DURATION.fullmatch(text) is None:
        raise typer.BadParameter(f"{text!r} is no duration such as 90s, 1h30m or 7d", param_hint=option)
    total_ms = sum(int(number) * UNITS_MS[unit] for number, unit in _PART.findall(text))
    try:
        return timedelta(milliseconds=total_ms)
    except OverflowError:
        raise typer.BadParameter(f"{text!r} is too long", param_hint=option) from None


def read_offsets(file: Path) -> dict[TopicPartition, int]:
    """Read a file of lines `topic,partition,offset`. Empty lines do not count.

    Raises:
        typer.BadParameter: the file has another form; the message names the line.
    """
    if file.stat().st_size > MAX_FILE_BYTES:
        raise typer.BadParameter(f"{file} has more than {MAX_FILE_BYTES} bytes; divide it", param_hint="--from-file")
    found: dict[TopicPartition, int] = {}
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise typer.BadParameter(f"{file} is no text in UTF-8", param_hint="--from-file") from None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        parts = [part.strip().strip('"') for part in line.split(",")]
        plain = len(parts) == 3 and all(
            part.isascii() and part.isdigit() and len(part) <= MAX_OFFSET_DIGITS for part in parts[1:]
        )
        if not plain or not parts[0]:
            raise typer.BadParameter(
                f"{file}, line {number}: {line[:80]!r} is not topic,partition,offset", param_hint="--from-file"
            )
        where = TopicPartition(parts[0], int(parts[1]))
        if where in found:
            raise typer.BadParameter(
                f"{file}, line {number}: {where.topic}:{where.partition} comes twice", param_hint="--from-file"
            )
        found[where] = int(parts[2])
    if not found:
        raise typer.BadParameter(f"{file} has no offsets", param_hint="--from-file")
    return found


def _write_offsets(file: Path, found: Sequence[GroupOffset]) -> int:
    lines = [f"{each.topic},{each.partition},{each.committed.offset}\n" for each in found if each.committed is not None]
    file.write_text("".join(lines), encoding="utf-8")
    return len(lines)


def _backup(file: Path, plan: Sequence[OffsetChange]) -> None:
    lines = [f"{each.topic},{each.partition},{each.before}\n" for each in plan if each.before is not None]
    file.write_text("".join(lines), encoding="utf-8")
    print_note(f"{counted(len(lines), 'present offset')} in {file}")


def _of_topics(
    offsets_of: dict[TopicPartition, int], wanted: Sequence[TopicPartition | str]
) -> dict[TopicPartition, int]:
    """Return the offsets of a file that --topic names.

    Raises:
        typer.BadParameter: the file has none of them.
    """
    found = {where: offset for where, offset in offsets_of.items() if where in wanted or where.topic in wanted}
    if not found:
        raise typer.BadParameter("the file has no offset of these topics", param_hint="--topic")
    return found


def _moves(plan: Sequence[OffsetChange]) -> list[OffsetChange]:
    return [each for each in plan if each.error is None and each.after is not None and each.after != each.before]


def _apply(admin: Admin, group: str, plan: Sequence[OffsetChange]) -> list[OffsetChange]:
    """Store what was computed, whatever was appended meanwhile, and return what became of each partition."""
    moves = {TopicPartition(each.topic, each.partition): each.after or 0 for each in _moves(plan)}
    done = admin.reset_group_offsets(group, moves) if moves else []
    by_place = {TopicPartition(each.topic, each.partition): each for each in done}
    return [by_place.get(TopicPartition(each.topic, each.partition), each) for each in plan]


# Output.


def _print_group(group: GroupDescription, found: Sequence[GroupOffset]) -> None:
    print_facts(
        {
            "group": group.group,
            "state": group.state.value,
            "members": len(group.members),
            "assignor": group.assignor,
            "epoch": group.epoch
            if group.epoch == group.target_epoch
            else f"{group.epoch}, target {group.target_epoch}",
            "coordinator": f"broker {group.coordinator_id}",
            **({} if group.empty_since_ms is None else {"empty since": format_time(group.empty_since_ms)}),
        }
    )
    if group.members:
        _print_members(group.members)
    _print_offsets(found, {where: each.client_id or each.host for each in group.members for where in each.assigned})


def _print_members(members: Sequence[GroupMember]) -> None:
    rows = [
        {
            "client": each.client_id or None,
            "instance": each.instance_id,
            "host": each.host or None,
            "rack": each.rack,
            "partitions": _partitions_text(each.assigned) or None,
            "revoking": _partitions_text(each.revoking) or None,
            "state": "away"
            if each.epoch < 0
            else None
            if each.progress is MemberProgress.STABLE
            else each.progress.value,
            "id": each.member_id[:SHORT_ID],
        }
        for each in members
    ]
    _print_used(counted(len(members), "member"), rows, always=("client", "host", "partitions", "id"))


def _print_offsets(found: Sequence[GroupOffset], owners: dict[TopicPartition, str]) -> None:
    rows = [
        {
            "topic": each.topic,
            "partition": each.partition,
            "committed": None if each.committed is None else each.committed.offset,
            "end": each.end_offset,
            "lag": each.lag,
            "metadata": None if each.committed is None else each.committed.metadata or None,
            "read by": owners.get(TopicPartition(each.topic, each.partition)),
        }
        for each in found
    ]
    lag = sum(each.lag or 0 for each in found)
    unknown = sum(each.lag is None for each in found)
    title = f"{counted(sum(each.committed is not None for each in found), 'offset')}, {counted(lag, 'record')} behind"
    title += f", {counted(unknown, 'partition')} unknown" if unknown else ""
    _print_used(title, rows, always=("topic", "partition", "committed", "end", "lag"))


def _print_used(title: str, rows: Sequence[Mapping[str, object]], *, always: Sequence[str]) -> None:
    """Print a table without the columns that are empty in every row."""
    names = list(rows[0]) if rows else list(always)
    used = [name for name in names if name in always or any(row[name] is not None for row in rows)]
    print_table(title, used, [[row[name] for name in used] for row in rows])


def _print_plan(group: str, plan: Sequence[OffsetChange], *, is_done: bool) -> None:
    moved = len(_moves(plan))
    verb = "moved" if is_done else "would move"
    rows = [
        {
            "topic": each.topic,
            "partition": each.partition,
            "current": each.before,
            "new": each.after,
            "difference": _difference(each),
        }
        for each in plan
    ]
    title = f"group {group}: {moved} of {counted(len(plan), 'partition')} {verb}"
    _print_used(title, rows, always=("topic", "partition", "current", "new", "difference"))


def _difference(change: OffsetChange) -> str | None:
    if change.after is None or change.before is None:
        return None if change.after is None else "new"
    by = change.after - change.before
    return f"{by:+d}" if by else "0"


def _advise(admin: Admin, group: str, plan: Sequence[OffsetChange]) -> None:
    """Say how to apply a plan, and what is in the way."""
    if not _moves(plan):
        typer.echo("Nothing would change.")
        return
    typer.echo("Nothing has changed yet. Repeat the command with --execute to apply this.")
    (described,) = admin.describe_groups([group])
    if described.members:
        print_note(f"the group has {counted(len(described.members), 'member')}: stop them before --execute")


def _partitions_text(partitions: Sequence[TopicPartition]) -> str:
    """Return partitions in short, such as "orders:0-2,5 payments:1"."""
    by_topic: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        by_topic.setdefault(topic, []).append(number)
    return " ".join(f"{topic}:{_ranges(numbers)}" for topic, numbers in by_topic.items())


def _ranges(numbers: Sequence[int]) -> str:
    texts: list[str] = []
    start = previous = numbers[0]
    for number in (*numbers[1:], -1):
        if number != previous + 1:
            texts.append(str(start) if start == previous else f"{start}-{previous}")
            start = number
        previous = number
    return ",".join(texts)


def _end_with(errors: Iterable[LograftError | None], *, names: Sequence[str] | None = None) -> None:
    """Print failures, each text once, and end with exit code 1 if there are any."""
    texts: dict[str, list[str]] = {}
    for number, error in enumerate(errors):
        if error is not None:
            texts.setdefault(error.message, []).extend([] if names is None else [names[number]])
    for text, concerned in texts.items():
        shown = ", ".join(concerned[:3]) + (f" and {len(concerned) - 3} more" if len(concerned) > 3 else "")
        print_error(f"{shown}: {text}" if shown else text)
    if texts:
        raise typer.Exit(1)


def _error(error: LograftError | None) -> dict[str, str] | None:
    return None if error is None else {"code": error.code.name, "message": error.message}


def _group_as_json(group: GroupDescription) -> dict[str, object]:
    return {
        **asdict(group),
        "error": _error(group.error),
        "state": group.state.value,
        "members": [_member_as_json(each) for each in group.members],
    }


def _member_as_json(member: GroupMember) -> dict[str, object]:
    return {
        **asdict(member),
        "progress": member.progress.value,
        **{
            name: [{"topic": each.topic, "partition": each.partition} for each in partitions]
            for name, partitions in (
                ("assigned", member.assigned),
                ("revoking", member.revoking),
                ("target", member.target),
            )
        },
    }


def _offset_as_json(found: GroupOffset) -> dict[str, object]:
    committed = found.committed
    return {
        "topic": found.topic,
        "partition": found.partition,
        "offset": None if committed is None else committed.offset,
        "metadata": None if committed is None else committed.metadata,
        "leader_epoch": None if committed is None else committed.leader_epoch,
        "commit_ms": None if committed is None else committed.commit_ms,
        "log_start_offset": found.log_start_offset,
        "end_offset": found.end_offset,
        "lag": found.lag,
        "error": _error(found.error),
    }


def _change_as_json(change: OffsetChange) -> dict[str, object]:
    return {
        "topic": change.topic,
        "partition": change.partition,
        "before": change.before,
        "after": change.after,
        "error": _error(change.error),
    }
