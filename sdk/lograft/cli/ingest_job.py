# SPDX-License-Identifier: Apache-2.0
"""The job of `lograft ingest`: files to a topic with Spark, exactly once.

What is asked before Spark starts costs milliseconds, and what Spark would find out takes seconds. So the topic, the ingest and the
files of this machine are looked at first.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from lograft.admin import Admin
from lograft.cli.completion import complete_topic
from lograft.cli.options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_MS,
    Bootstrap,
    ClusterId,
    Json,
    TimeoutMs,
    format_time,
    parse_pairs,
)
from lograft.cli.output import bytes_as_json, counted, format_size, print_facts, print_json, print_note, print_table
from lograft.cli.progress import Meter
from lograft.cli.spark_options import Conf, DryRun, Master, SparkLog, describe_topic, spark_session
from lograft.errors import IngestConflictError, IngestNotFoundError, LograftError
from lograft.types import ConfigResource, IngestDescription, IngestKind, IngestState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lograft.spark.jobs.ingesting import Counts, Rehearsal
    from lograft.spark.jobs.phases import Moments
    from lograft.spark.jobs.plan import IngestPlan

SHOWN_CHARACTERS: Final = 60
"""Most characters of a key or value in the table of a dry run."""

SPARK: Final = "Spark"
OURS: Final = "Lograft"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cluster:
    """Where the command connects to."""

    bootstrap: str
    cluster_id: str | None
    timeout_ms: int

    def admin(self) -> Admin:
        return Admin(self.bootstrap, cluster_id=self.cluster_id, request_timeout_ms=self.timeout_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Topic:
    """What the job must know of the topic: partitions, and the milliseconds that it keeps records (-1: for ever)."""

    partition_count: int
    retention_ms: int


def ingest(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH...",
            help="Files, directories or patterns of this machine, or URLs such as s3a://bucket/orders.",
            show_default=False,
        ),
    ],
    topic: Annotated[
        str, typer.Option("--topic", "-t", help="Topic that gets the records.", autocompletion=complete_topic)
    ],
    format: Annotated[
        str | None,
        typer.Option("--format", "-f", help="json (one object a line), csv, parquet or text; default: by the names."),
    ] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", metavar="COLUMN", help="Column that is the key.")] = None,
    value: Annotated[
        str | None,
        typer.Option(
            "--value",
            "-v",
            metavar="COLUMN",
            help="Column that is the value, as it is. Default: the line (json, text), or all columns as a JSON object.",
        ),
    ] = None,
    value_columns: Annotated[
        str | None,
        typer.Option("--value-columns", metavar="COLUMNS", help="The value is a JSON object of these: a,b,c."),
    ] = None,
    timestamp: Annotated[
        str | None,
        typer.Option(
            "--timestamp",
            metavar="COLUMN",
            help="Column that is the create time: a timestamp, a date, ISO 8601, or milliseconds since 1970.",
        ),
    ] = None,
    order_by_time: Annotated[
        bool,
        typer.Option(
            "--order-by-time",
            help="Sort by --timestamp over all files: then a time range of the topic has exactly the records of that time.",
        ),
    ] = False,
    partition: Annotated[
        str | None,
        typer.Option("--partition", "-p", metavar="COLUMN", help="Column that is the partition; default: by the key."),
    ] = None,
    headers: Annotated[
        str | None,
        typer.Option("--headers", "-H", metavar="COLUMNS", help="Columns that become headers: a,b."),
    ] = None,
    ingest_id: Annotated[
        str | None,
        typer.Option(
            "--ingest-id",
            "-i",
            help="What is ingested, such as orders/2026-11-27: a second run adds nothing. Default: a new one for each run.",
        ),
    ] = None,
    codec: Annotated[str, typer.Option("--codec", help='"none" or "zstd".')] = "none",
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option", "-o", metavar="NAME=VALUE", help="Option of Spark's reader, such as sep=;; may be repeated."
        ),
    ] = None,
    dry_run: DryRun = False,
    sample: Annotated[int, typer.Option("--sample", min=0, max=1_000, help="Records that --dry-run shows.")] = 5,
    master: Master = None,
    conf: Conf = None,
    spark_log: SparkLog = "off",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    cluster_id: ClusterId = None,
    timeout_ms: TimeoutMs = DEFAULT_TIMEOUT_MS,
    as_json: Json = False,
) -> None:
    """Put files into a topic with Spark, exactly once; list, show and abort ingests.

    All records become readable together at the end of the job, or none. A file that is called list, show or abort is given as ./list.
    """
    from lograft.spark.jobs.local_files import check_files
    from lograft.spark.jobs.plan import plan_ingest
    from lograft.spark.jobs.session import require_spark

    plan = plan_ingest(
        paths,
        topic=topic,
        ingest_id=f"ingest-{uuid.uuid4()}" if ingest_id is None else ingest_id,
        format=format,
        key=key,
        value=value,
        value_columns=value_columns,
        timestamp=timestamp,
        partition=partition,
        headers=headers,
        is_ordered=order_by_time,
        options=dict(parse_pairs(option or [], "--option")),
    )
    check_files(plan)
    require_spark()
    cluster = _Cluster(bootstrap=bootstrap, cluster_id=cluster_id, timeout_ms=timeout_ms)
    with cluster.admin() as admin:
        found = _look(admin, topic)
        earlier = None if ingest_id is None else _earlier(admin, plan)
    if earlier is not None and not dry_run:
        _report(plan, earlier, None, None, was_committed=True, as_json=as_json)
        return
    asked_s = time.monotonic()
    with spark_session(f"lograft ingest {topic}", master=master, conf=conf, log_level=spark_log) as spark:
        from lograft.spark.jobs.ingesting import rehearse
        from lograft.spark.jobs.phases import Moments

        moments = Moments(asked=asked_s, ready=time.monotonic())
        if dry_run:
            rehearsal = rehearse(spark, plan, partition_count=found.partition_count, sample_rows=sample)
            _report_rehearsal(plan, found, rehearsal, earlier, as_json=as_json)
            return
        counts, moments, last = _run(spark, plan, cluster, {"kafka.compression.type": codec}, moments)
    _note_of_age(plan, found, counts)
    _report(plan, last, counts, replace(moments, ended=time.monotonic()), was_committed=False, as_json=as_json)


def _look(admin: Admin, topic: str) -> _Topic:
    partition_count = describe_topic(admin, topic).partition_count
    resource = ConfigResource.topic(topic)
    retention = admin.describe_configs([resource])[resource].get("retention.ms")
    return _Topic(
        partition_count=partition_count,
        retention_ms=-1 if retention is None or not retention.value else int(retention.value),
    )


def _earlier(admin: Admin, plan: IngestPlan) -> IngestDescription | None:
    """Return the ingest if it was committed before.

    Raises:
        IngestConflictError: the id belongs to something else.
    """
    try:
        found = admin.describe_ingest(plan.ingest_id)
    except IngestNotFoundError:
        return None
    if found.kind is IngestKind.REPEATED:
        raise IngestConflictError(f"{plan.ingest_id!r} is an id of transactions: give the ingest another one")
    if found.state is not IngestState.COMMITTED:
        return None
    if found.topics != (plan.topic,):
        raise IngestConflictError(
            f"ingest {plan.ingest_id!r} was committed to {', '.join(found.topics)}: give another --ingest-id"
        )
    return found


def _run(
    spark: SparkSession, plan: IngestPlan, cluster: _Cluster, options: Mapping[str, str], moments: Moments
) -> tuple[Counts | None, Moments, IngestDescription]:
    """Run the job under a progress bar."""
    from lograft.spark.jobs.failures import explained
    from lograft.spark.jobs.ingesting import Target, write
    from lograft.spark.jobs.watching import IngestWatch, present_tasks

    target = Target(bootstrap=cluster.bootstrap, cluster_id=cluster.cluster_id, options=options)
    counts: Counts | None = None
    failure: LograftError | None = None
    with Meter("ingest", None) as meter:
        task_count = 0

        def show(seen: IngestDescription) -> None:
            nonlocal task_count
            if seen.open_attempts:
                tasks = present_tasks(spark)
                task_count = task_count if tasks is None else tasks[1]
            if seen.state is IngestState.DECIDED:
                meter.show(seen.published_parts, seen.parts, f"publishing {seen.sealed_records:,} records")
            else:
                total = max(task_count, seen.sealed_attempts) or None
                meter.show(seen.sealed_attempts, total, _progress(seen, task_count))

        with IngestWatch(
            cluster.bootstrap,
            plan.ingest_id,
            moments,
            on_status=show,
            cluster_id=cluster.cluster_id,
            timeout_ms=cluster.timeout_ms,
        ) as watch:
            try:
                counts = write(spark, plan, target)
            except Exception as error:
                failure = explained(error)
    last = watch.last
    if last is not None and last.state is IngestState.COMMITTED:
        if failure is not None:
            print_note(f"the ingest is committed, although Spark says: {failure.message}")
        return counts, watch.moments, last
    if failure is None:
        failure = LograftError(
            f"the job has ended, and nobody says how: lograft ingest show {plan.ingest_id} says whether it is committed"
        )
    elif last is not None and last.state in (IngestState.OPEN, IngestState.ABORTED):
        print_note(f"nothing was published; --ingest-id {plan.ingest_id} may be used again")
    raise failure


def _progress(seen: IngestDescription, task_count: int) -> str:
    of_all = f" of {task_count}" if task_count else ""
    return f"{seen.sealed_attempts}{of_all} tasks, {seen.sealed_records:,} records staged"


def _note_of_age(plan: IngestPlan, topic: _Topic, counts: Counts | None) -> None:
    """Say it if the topic does not keep records as old as these."""
    if counts is None or counts.first_ms is None or topic.retention_ms < 0:
        return
    if counts.first_ms < int(time.time() * 1000) - topic.retention_ms:
        print_note(
            f"the oldest record is of {format_time(counts.first_ms)}, and topic {plan.topic} keeps records for "
            f"{topic.retention_ms} ms: it will remove older ones. "
            f"lograft configs set retention.ms=-1 --topic {plan.topic} keeps them"
        )


def _report(
    plan: IngestPlan,
    found: IngestDescription,
    counts: Counts | None,
    moments: Moments | None,
    *,
    was_committed: bool,
    as_json: bool,
) -> None:
    from lograft.spark.jobs.phases import phases, shares

    parts = [] if moments is None else phases(moments)
    spark_s, ours_s = shares(parts)
    result = found.result
    records = 0 if result is None else result.records
    ranges = () if result is None else result.partitions
    if as_json:
        print_json(
            {
                "ingest": plan.ingest_id,
                "topic": plan.topic,
                "was_committed": was_committed,
                "records": records,
                "size_bytes": None if counts is None else counts.size_bytes,
                "first_ms": None if counts is None else counts.first_ms,
                "last_ms": None if counts is None else counts.last_ms,
                "partitions": [asdict(each) for each in ranges],
                "spark_seconds": round(spark_s, 3),
                "lograft_seconds": round(ours_s, 3),
                "phases": [
                    {"what": each.what, "by": OURS if each.is_ours else SPARK, "seconds": round(each.seconds, 3)}
                    for each in parts
                ],
            }
        )
        return
    if was_committed:
        typer.echo(f"ingest {plan.ingest_id} was committed before; this run has added nothing. It had published:")
    facts: dict[str, object] = {"ingest": plan.ingest_id, "topic": plan.topic, "records": f"{records:,}"}
    if counts is not None:
        facts["bytes"] = f"{format_size(counts.size_bytes)} of keys and values"
        if counts.first_ms is not None and counts.last_ms is not None:
            facts["times"] = f"{format_time(counts.first_ms)} to {format_time(counts.last_ms)}"
    if parts:
        facts["took"] = (
            f"{spark_s + ours_s:.1f} s: {SPARK} {spark_s:.1f} s, {OURS} {ours_s:.1f} s{_rate(records, ours_s)}"
        )
    print_facts(facts)
    print_table(
        counted(len(ranges), "partition"),
        ("partition", "records", "first", "end"),
        [(each.partition, each.records, each.first_offset, each.end_offset) for each in ranges],
    )
    if parts:
        print_table(
            "where the time went",
            ("by", "seconds", "what"),
            [(OURS if each.is_ours else SPARK, f"{each.seconds:.2f}", each.what) for each in parts],
        )


def _rate(records: int, seconds: float) -> str:
    return f" ({records / seconds:,.0f} records/s)" if seconds > 0 and records else ""


def _report_rehearsal(
    plan: IngestPlan, topic: _Topic, found: Rehearsal, earlier: IngestDescription | None, *, as_json: bool
) -> None:
    counts = found.counts
    _note_of_age(plan, topic, counts)
    if as_json:
        print_json(
            {
                "dry_run": True,
                "ingest": plan.ingest_id,
                "topic": plan.topic,
                "partition_count": topic.partition_count,
                "was_committed": earlier is not None,
                "columns": dict(found.columns),
                **asdict(counts),
                "partitions": [{"partition": each, "records": count} for each, count in found.partitions.items()],
                "sample": [_row_as_json(each) for each in found.sample],
            }
        )
        return
    print_table(
        counted(len(found.columns), "column"),
        ("column", "type", "becomes"),
        [(name, kind, _becomes(plan, name) or None) for name, kind in found.columns.items()],
    )
    print_table(
        f"the first {counted(len(found.sample), 'record')}",
        ("key", "value", "time", "partition", "headers"),
        [_sample_row(each) for each in found.sample],
        may_go=("headers", "partition"),
    )
    print_table(
        "where they would go",
        ("partition", "records"),
        [("any, in turns" if each is None else each, count) for each, count in found.partitions.items()],
    )
    facts: dict[str, object] = {
        "would write": f"{counted(counts.records, 'record')}, {format_size(counts.size_bytes)} of keys and values",
        "to": f"topic {plan.topic}, {counted(topic.partition_count, 'partition')}",
        "as ingest": plan.ingest_id,
    }
    if counts.first_ms is not None and counts.last_ms is not None:
        facts["times"] = f"{format_time(counts.first_ms)} to {format_time(counts.last_ms)}"
    print_facts(facts)
    if earlier is not None:
        print_note(f"ingest {plan.ingest_id} was committed before: a run adds nothing")
    typer.echo("nothing was written")


def _becomes(plan: IngestPlan, name: str) -> str:
    roles = {
        "key": plan.key == name,
        "value": plan.value == name or name in plan.value_columns or _is_all(plan),
        "time": plan.timestamp == name,
        "partition": plan.partition == name,
        "header": name in plan.headers,
    }
    return ", ".join(role for role, holds in roles.items() if holds)


def _is_all(plan: IngestPlan) -> bool:
    return plan.value is None and not plan.value_columns


def _sample_row(row: Mapping[str, Any]) -> Sequence[object]:
    moment = row.get("timestamp_ms")
    return (
        _shown(row.get("key")),
        _shown(row.get("value")),
        "time of sending" if moment is None else format_time(moment),
        row.get("partition"),
        ", ".join(f"{each['key']}={_shown(each['value'])}" for each in row.get("headers") or ()) or None,
    )


def _row_as_json(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **bytes_as_json("key", _as_bytes(row.get("key"))),
        **bytes_as_json("value", _as_bytes(row.get("value"))),
        "timestamp_ms": row.get("timestamp_ms"),
        "partition": row.get("partition"),
        "headers": [
            {"name": each["key"], **bytes_as_json("value", _as_bytes(each["value"]))}
            for each in row.get("headers") or ()
        ],
    }


def _as_bytes(found: Any) -> bytes | None:
    return found.encode() if isinstance(found, str) else None if found is None else bytes(found)


def _shown(found: Any) -> str | None:
    data = _as_bytes(found)
    if data is None:
        return None
    text = data.decode(errors="backslashreplace")
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[: SHOWN_CHARACTERS - 3]}..."
