# SPDX-License-Identifier: Apache-2.0
"""`lograft replay`: the records of a topic to files with Spark, or to the console."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from lograft.admin import Admin
from lograft.cli.completion import complete_topic
from lograft.cli.formats import JSON, record_writer
from lograft.cli.options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_MS,
    Bootstrap,
    ClusterId,
    Json,
    TimeoutMs,
    parse_pairs,
    parse_time_ms,
)
from lograft.cli.output import DIM, counted, format_size, print_facts, print_json, print_table, styled
from lograft.cli.progress import Meter
from lograft.cli.spark_options import Conf, DryRun, Master, SparkLog, describe_topic, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lograft.spark.jobs.plan import ReplayPlan
    from lograft.spark.jobs.replaying import Source, Span


def replay(
    topic: Annotated[str, typer.Option("--topic", "-t", help="Topic to read.", autocompletion=complete_topic)],
    to: Annotated[
        str,
        typer.Option("--to", metavar="PATH|console", help="Directory or URL to write, or console: print the records."),
    ],
    format: Annotated[
        str | None,
        typer.Option(
            "--format",
            "-f",
            help="Of files: parquet (default) or json. Of the console: json, or text as with consume, such as '%k %s\\n'.",
        ),
    ] = None,
    begin: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="TIME",
            help="Begin at the first record of this time or later: milliseconds since 1970, ISO 8601, or 15m, 2h, 7d ago.",
        ),
    ] = None,
    end: Annotated[
        str | None,
        typer.Option(
            "--until", metavar="TIME", help="End before the first record of this time or later, given as --from."
        ),
    ] = None,
    from_offset: Annotated[
        list[str] | None,
        typer.Option(
            "--from-offset", metavar="[PARTITION:]OFFSET", help="Begin at this offset, inclusive; may be repeated."
        ),
    ] = None,
    until_offset: Annotated[
        list[str] | None,
        typer.Option(
            "--until-offset", metavar="[PARTITION:]OFFSET", help="End before this offset, exclusive; may be repeated."
        ),
    ] = None,
    partition: Annotated[
        list[int] | None, typer.Option("--partition", "-p", min=0, help="May be repeated; default: all.")
    ] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="Only records with this key.")] = None,
    max_records: Annotated[
        int | None, typer.Option("--max", "-n", min=1, max=2**31 - 1, help="At most this many records.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is at the path.")] = False,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option", "-o", metavar="NAME=VALUE", help="Option of Spark's writer, such as compression=zstd."
        ),
    ] = None,
    rack: Annotated[
        str | None,
        typer.Option("--rack", help="Read from followers in sync in this rack rather than from other leaders."),
    ] = None,
    null_value: Annotated[
        str, typer.Option("--null-value", help="What a null value (a tombstone) is printed as on the console.")
    ] = "(null)",
    dry_run: DryRun = False,
    master: Master = None,
    conf: Conf = None,
    spark_log: SparkLog = "off",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    cluster_id: ClusterId = None,
    timeout_ms: TimeoutMs = DEFAULT_TIMEOUT_MS,
    as_json: Json = False,
) -> None:
    """Write the records of a topic to files with Spark, or print them: all of them, or a time range, offsets, a key.

    What is read is fixed at the beginning, whatever arrives in the meantime.
    """
    from lograft.spark.jobs.local_files import check_target
    from lograft.spark.jobs.plan import plan_replay
    from lograft.spark.jobs.session import require_spark

    plan = plan_replay(
        topic,
        to,
        format=format,
        partitions=partition or (),
        from_ms=None if begin is None else parse_time_ms(begin, "--from"),
        until_ms=None if end is None else parse_time_ms(end, "--until"),
        from_offsets=from_offset or (),
        until_offsets=until_offset or (),
        key=key,
        limit=max_records,
        is_overwriting=overwrite,
        options=dict(parse_pairs(option or [], "--option")),
    )
    is_json = as_json or format == JSON
    # A wrong format is an error now, not after Spark's start.
    write_record = record_writer(format, null_value, is_json=is_json, verbose=False) if plan.target is None else None
    check_target(plan)
    require_spark()
    with Admin(bootstrap, cluster_id=cluster_id, request_timeout_ms=timeout_ms) as admin:
        describe_topic(admin, topic)
    # Imported after the checks, because it loads PySpark.
    from lograft.spark.jobs.replaying import Source, records, spans_of

    source = Source(
        bootstrap=bootstrap,
        cluster_id=cluster_id,
        timeout_ms=timeout_ms,
        options={} if rack is None else {"kafka.client.rack": rack},
    )
    spans = spans_of(plan, source)
    if dry_run:
        _report_spans(plan, spans, as_json=as_json)
        return
    asked_s = time.monotonic()
    with spark_session(f"lograft replay {topic}", master=master, conf=conf, log_level=spark_log) as spark:
        ready_s = time.monotonic()
        if write_record is not None:
            printed = 0
            out = sys.stdout.buffer
            for record in records(spark, plan, source, spans):
                out.write(write_record(record))
                printed += 1
            out.flush()
            if not is_json:
                print(styled(counted(printed, "record"), DIM, sys.stderr), file=sys.stderr)
            return
        _write(spark, plan, source, spans, asked_s, ready_s, as_json=as_json)


def _write(
    spark: SparkSession,
    plan: ReplayPlan,
    source: Source,
    spans: Sequence[Span],
    asked_s: float,
    ready_s: float,
    *,
    as_json: bool,
) -> None:
    """Write the files under a progress bar, and say what was written."""
    from lograft.spark.jobs.replaying import write
    from lograft.spark.jobs.watching import TaskWatch

    with (
        Meter("replay", None) as meter,
        TaskWatch(spark, lambda done, total: meter.show(done, total, f"{done} of {counted(total, 'task')}")),
    ):
        written = write(spark, plan, source, spans)
    start_s, job_s = ready_s - asked_s, time.monotonic() - ready_s
    if as_json:
        print_json(
            {
                "topic": plan.topic,
                "to": plan.target,
                "format": plan.format.value,
                **asdict(written),
                "partitions": [asdict(each) for each in spans],
                "start_seconds": round(start_s, 3),
                "seconds": round(job_s, 3),
            }
        )
        return
    _print_spans(spans)
    rate = f" ({written.records / job_s:,.0f} records/s)" if written.records and job_s > 0 else ""
    print_facts(
        {
            "topic": plan.topic,
            "to": f"{plan.target} ({plan.format.value})",
            "records": f"{written.records:,}",
            "bytes": f"{format_size(written.size_bytes)} of keys and values",
            "took": f"{start_s + job_s:.1f} s: start of Spark {start_s:.1f} s, the job {job_s:.1f} s{rate}",
        }
    )


def _report_spans(plan: ReplayPlan, spans: Sequence[Span], *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "dry_run": True,
                "topic": plan.topic,
                "to": plan.target,
                "format": plan.format.value,
                "partitions": [asdict(each) for each in spans],
            }
        )
        return
    _print_spans(spans)
    offsets = sum(each.end_offset - each.start_offset for each in spans)
    limits = "" if plan.key is None else ", only those with the key"
    print_facts(
        {
            "would read": f"{counted(offsets, 'offset')} of topic {plan.topic}{limits}",
            "to": "console" if plan.target is None else f"{plan.target} ({plan.format.value})",
        }
    )
    typer.echo("nothing was written")


def _print_spans(spans: Sequence[Span]) -> None:
    print_table(
        counted(len(spans), "partition"),
        ("partition", "offsets", "first", "end"),
        [(each.partition, each.end_offset - each.start_offset, each.start_offset, each.end_offset) for each in spans],
    )
