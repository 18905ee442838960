# SPDX-License-Identifier: Apache-2.0
"""Files of this machine: whether they are there, before Spark takes seconds to find out, and how Spark names them."""

from __future__ import annotations

import glob
import os

from lograft.errors import UsageError
from lograft.spark.jobs.plan import IngestPlan, ReplayPlan, local_path


def check_files(plan: IngestPlan) -> None:
    """Check that the files to read are there.

    Raises:
        UsageError: a path names nothing, or what this user may not read.
    """
    for path in plan.paths:
        local = local_path(path)
        if local is None:
            continue
        is_there = os.path.lexists(local)
        found = [local] if is_there else glob.glob(local) if glob.has_magic(local) else []
        if not found:
            raise UsageError(f"there is no file {path!r}")
        for each in found:
            if not os.access(each, os.R_OK):
                raise UsageError(f"this user may not read {each!r}")


def check_target(plan: ReplayPlan) -> None:
    """Check that nothing is where a replay writes.

    Raises:
        UsageError: something is.
    """
    local = None if plan.target is None else local_path(plan.target)
    if local is not None and not plan.is_overwriting and os.path.lexists(local):
        raise UsageError(f"there is something at {plan.target!r} already; --overwrite replaces it")


def absolute_url(path: str) -> str:
    """Return a path that means the same to every process and file system: one of this machine as a URL, others as they are."""
    local = local_path(path)
    return path if local is None else "file://" + os.path.abspath(local)
