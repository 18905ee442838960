# SPDX-License-Identifier: Apache-2.0
"""`python -m integration_tests.scenarios.demo [--input FILE] [--faults]`: the main use case of Lograft, with its proof.

Exit status: 0 the replays equal the source; 1 they differ, or something failed; 2 the input or the command line is wrong.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from rich.console import Console

from integration_tests.scenarios.demo.sources import (
    JAR_ENTRY_COUNTS,
    FileColumns,
    SourceError,
    file_records,
    jar_entries,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo and return the exit status."""
    chosen = _parser().parse_args(arguments)
    console = Console(highlight=False)
    # Imported here so that --help and a wrong path do not wait for Spark's and the brokers' modules.
    from lograft.spark import JavaNotFoundError

    from integration_tests.scenarios.demo.run import TOPIC, Demo, DemoFailedError, run

    pyspark_version = version("pyspark")
    if chosen.input is None:
        demo = Demo(
            records=jar_entries(),
            expected_count=JAR_ENTRY_COUNTS.get(pyspark_version),
            title=f"entries of the jars of PySpark {pyspark_version}",
            topic=TOPIC,
            console=console,
            has_faults=chosen.faults,
        )
    else:
        columns = FileColumns(key=chosen.key, timestamp=chosen.timestamp, now_ms=time.time_ns() // 1_000_000)
        demo = Demo(
            records=file_records(chosen.input, columns),
            expected_count=None,
            title=chosen.input.name,
            topic="records",
            console=console,
            has_faults=chosen.faults,
        )
    try:
        return 0 if run(demo) else 1
    except SourceError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2
    except (JavaNotFoundError, DemoFailedError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m integration_tests.scenarios.demo",
        description="Ingest records with PySpark into a Lograft cluster, exactly once, replay them, and compare.",
    )
    parser.add_argument(
        "--input", type=Path, metavar="FILE", help="JSON lines, CSV or Parquet (default: PySpark's jars)"
    )
    parser.add_argument("--key", metavar="COLUMN", help="column that is the key (default: key, or the first one)")
    parser.add_argument("--timestamp", metavar="COLUMN", help="column that is the time (default: timestamp, if any)")
    parser.add_argument(
        "--faults",
        action="store_true",
        help="three brokers and two executors of their own, and one of each is killed on the way",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
