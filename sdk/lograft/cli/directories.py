# SPDX-License-Identifier: Apache-2.0
"""`lograft directories`: the log directories of a broker, and moves of replicas between them."""

from __future__ import annotations

import threading
import time
from typing import Annotated, Final

import typer

from lograft.admin import Admin
from lograft.cli.admin_command import admin_command
from lograft.cli.completion import complete_broker, complete_topic
from lograft.cli.options import Json
from lograft.cli.output import counted, format_size, print_json, print_table
from lograft.errors import LograftError, RequestTimeoutError, UsageError
from lograft.types import LogDirectories, LogDirectory, MoveState, ReplicaMove, TopicPartition, UnknownPartitions

POLL_INTERVAL_S: Final = 0.2
"""Seconds between two checks of a move with --wait."""

DEFAULT_WAIT_MS: Final = 3_600_000
"""Milliseconds that --wait waits for a move, unless the user gives another time."""

_ENDED: Final = (MoveState.DONE, MoveState.FAILED)

directories_app: typer.Typer = typer.Typer(
    no_args_is_help=True, help="Look at a broker's log directories, and move replicas."
)

Broker = Annotated[
    int | None,
    typer.Option(
        "--broker", "-b", help="Id of the broker; needed where there are several.", autocompletion=complete_broker
    ),
]


@admin_command(directories_app, Admin.describe_log_directories, name="list")
def list_directories(
    admin: Admin,
    broker: Broker = None,
    replicas: Annotated[bool, typer.Option("--replicas", help="Also list the replicas in each.")] = False,
    as_json: Json = False,
) -> None:
    """Show the log directories of a broker, and the moves between them."""
    found = admin.describe_log_directories(broker, with_replicas=replicas)
    if as_json:
        print_json(_as_json(found))
        return
    print_table(
        f"log directories of broker {found.broker_id}",
        ("path", "state", "free", "replicas", "unknown partitions", "unknown bytes", "problem", "id"),
        [
            (
                each.path,
                each.state.value,
                None if each.free_bytes is None else format_size(each.free_bytes),
                each.replica_count,
                each.unknown_partition_count,
                each.unknown_partition_bytes,
                each.problem or None,
                each.directory_id.hex(),
            )
            for each in found.directories
        ],
        may_go=_unneeded(found),
    )
    if replicas:
        rows = [
            (where.topic, where.partition, each.replica_bytes.get(where), each.path)
            for each in found.directories
            for where in each.replicas
        ]
        typer.echo()
        print_table(counted(len(rows), "replica"), ("topic", "partition", "bytes", "directory"), rows)
    if found.moves:
        typer.echo()
        print_table(
            "moves",
            ("topic", "partition", "to", "state", "bytes copied", "of bytes", "problem"),
            [
                (
                    move.topic,
                    move.partition,
                    _path_of(found, move.target_directory_id),
                    move.state.value,
                    move.copied_bytes,
                    move.size_bytes,
                    move.problem,
                )
                for move in found.moves
            ],
        )


@admin_command(directories_app, Admin.move_replica, name="move")
def move_replica(
    admin: Admin,
    topic: Annotated[str, typer.Argument(help="Topic name.", autocompletion=complete_topic)],
    partition: Annotated[int, typer.Argument(help="Partition, from 0.")],
    directory: Annotated[str, typer.Argument(help="Id (in hex) or path of the directory to move to.")],
    broker: Broker = None,
    wait: Annotated[bool, typer.Option("--wait", help="Return when the replica is there.")] = False,
    wait_ms: Annotated[int, typer.Option(help="Milliseconds to wait, at most.", min=1)] = DEFAULT_WAIT_MS,
    as_json: Json = False,
) -> None:
    """Move a replica to another log directory of its broker, while it is used."""
    found = admin.describe_log_directories(broker)
    target = _find(found, directory)
    admin.move_replica(TopicPartition(topic, partition), target.directory_id, found.broker_id)
    move = _wait(admin, found.broker_id, topic, partition, wait_ms) if wait else None
    if as_json:
        state = "begun" if move is None else move.state.value
        print_json({"topic": topic, "partition": partition, "directory": target.path, "state": state})
    elif wait:
        typer.echo(f"{topic}-{partition} is in {target.path}")
    else:
        typer.echo(f"{topic}-{partition} is being moved to {target.path}; `lograft directories list` tells how it goes")


@admin_command(directories_app, Admin.delete_unknown_partitions, name="delete-unknown")
def delete_unknown(
    admin: Admin,
    broker: Broker = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Delete, for good, what a broker has set aside because the cluster does not know it; otherwise it goes after seven days."""
    found = admin.describe_log_directories(broker)
    count = sum(each.unknown_partition_count for each in found.directories)
    size_bytes = sum(each.unknown_partition_bytes for each in found.directories)
    if count and not yes:
        typer.confirm(
            f"Delete {counted(count, 'partition directory', 'partition directories')} of broker {found.broker_id} with "
            f"{counted(size_bytes, 'byte')}?",
            abort=True,
        )
    deleted = (
        admin.delete_unknown_partitions(found.broker_id)
        if count
        else UnknownPartitions(partition_count=0, size_bytes=0)
    )
    if as_json:
        print_json(
            {"broker_id": found.broker_id, "partition_count": deleted.partition_count, "size_bytes": deleted.size_bytes}
        )
    else:
        what = counted(deleted.partition_count, "partition directory", "partition directories")
        typer.echo(f"{what} with {counted(deleted.size_bytes, 'byte')} deleted")


def _unneeded(found: LogDirectories) -> tuple[str, ...]:
    """Return the columns that a narrow terminal does not show: the id, and what is empty in every row."""
    has_unknown = any(each.unknown_partition_count for each in found.directories)
    has_problem = any(each.problem for each in found.directories)
    return (
        "id",
        *(() if has_unknown else ("unknown bytes", "unknown partitions")),
        *(() if has_problem else ("problem",)),
    )


def _find(found: LogDirectories, directory: str) -> LogDirectory:
    for each in found.directories:
        if directory in (each.directory_id.hex(), each.path):
            return each
    known = ", ".join(f"{each.path} ({each.directory_id.hex()})" for each in found.directories)
    raise UsageError(f"broker {found.broker_id} has no log directory {directory!r}; it has {known}")


def _wait(admin: Admin, broker_id: int, topic: str, partition: int, wait_ms: int) -> ReplicaMove | None:
    """Return the move when it has ended; None if there was nothing to move."""
    deadline_s = time.monotonic() + wait_ms / 1000
    pause = threading.Event()
    while True:
        moves = admin.describe_log_directories(broker_id).moves
        move = next((each for each in moves if (each.topic, each.partition) == (topic, partition)), None)
        if move is not None and move.state is MoveState.FAILED:
            raise LograftError(f"{topic}-{partition} stays where it was: {move.problem}")
        if move is None or move.state in _ENDED:
            return move
        if time.monotonic() >= deadline_s:
            raise RequestTimeoutError(f"the move of {topic}-{partition} goes on after {wait_ms} ms: {move.state.value}")
        pause.wait(POLL_INTERVAL_S)


def _path_of(found: LogDirectories, directory_id: bytes) -> str:
    paths = [each.path for each in found.directories if each.directory_id == directory_id]
    return paths[0] if paths else directory_id.hex()


def _as_json(found: LogDirectories) -> dict[str, object]:
    return {
        "broker_id": found.broker_id,
        "directories": [
            {
                "directory_id": each.directory_id.hex(),
                "path": each.path,
                "state": each.state.value,
                "free_bytes": each.free_bytes,
                "replica_count": each.replica_count,
                "replicas": [
                    {"topic": where.topic, "partition": where.partition, "size_bytes": each.replica_bytes.get(where)}
                    for where in each.replicas
                ],
                "unknown_partition_count": each.unknown_partition_count,
                "unknown_partition_bytes": each.unknown_partition_bytes,
                "problem": each.problem,
            }
            for each in found.directories
        ],
        "moves": [
            {
                "topic": move.topic,
                "partition": move.partition,
                "source_directory_id": move.source_directory_id.hex(),
                "target_directory_id": move.target_directory_id.hex(),
                "state": move.state.value,
                "size_bytes": move.size_bytes,
                "copied_bytes": move.copied_bytes,
                "problem": move.problem,
            }
            for move in found.moves
        ],
    }
