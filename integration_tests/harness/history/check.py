# SPDX-License-Identifier: Apache-2.0
"""Checks a history again: `python -m integration_tests.harness.history.check HISTORY`.

Exit status: 0 no anomaly; 1 anomalies; 2 no anomaly, but some data was not read at the end.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from integration_tests.harness.history.checker import EXIT_STATUS, STALE_END_S_MAX, check
from integration_tests.harness.history.events import read_history


def main() -> int:
    """Judge the file and print the verdict."""
    parser = argparse.ArgumentParser(description="judge a history of producers and consumers")
    parser.add_argument("history", type=Path, help="file of JSON lines")
    parser.add_argument("--stale-end-s", type=float, default=STALE_END_S_MAX, help="seconds that an end may be old")
    arguments = parser.parse_args()
    verdict = check(read_history(arguments.history), stale_end_s_max=arguments.stale_end_s)
    print("\n".join(verdict.lines()))
    return EXIT_STATUS[verdict.name]


if __name__ == "__main__":
    raise SystemExit(main())
