# SPDX-License-Identifier: Apache-2.0
"""Gathers the sources in `OUTPUT/source` and builds the pages in `OUTPUT/html`. Ends with 1 if Sphinx warns of anything."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from sphinx.cmd.build import main as run_sphinx

from sitebuild.sources import gather

DEFAULT_OUTPUT = Path("build/docs")


def main(output: Path) -> int:
    """Build the site in a folder, which loses its former content, and return the exit status."""
    for old in ("source", "html", "doctrees"):
        shutil.rmtree(output / old, ignore_errors=True)
    gather(output / "source")
    status = build_pages(output)
    if status == 0:
        sys.stdout.write(f"the site is in {output}/html/index.html\n")
    return status


def build_pages(output: Path) -> int:
    """Build the gathered sources and return the exit status, which is 1 after a warning."""
    options = ["--fail-on-warning", "--keep-going", "--quiet", "--builder", "html"]
    return run_sphinx(
        [*options, "--doctree-dir", str(output / "doctrees"), str(output / "source"), str(output / "html")]
    )


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_OUTPUT))
