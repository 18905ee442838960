# SPDX-License-Identifier: Apache-2.0
"""Ready jobs in Spark: `lograft ingest` puts files into a topic exactly once, `lograft replay` writes a topic to files.

    plan            what a job reads and writes, from its arguments. Pure
    expressions     what becomes key, value, time and headers, as expressions of Spark SQL. Pure
    phases          where the time of an ingest went. Pure
    local_files     files of this machine
    session         the Spark session of a job
    ingesting       files to a topic
    replaying       a topic to files
    watching        how far an ingest is, from its coordinator
    failures        errors of Spark as errors of Lograft

The commands are in `lograft.cli`. They import `ingesting` and `replaying` only when a job starts, because these import PySpark.
"""

from __future__ import annotations
