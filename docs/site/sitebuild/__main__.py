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
    source, pages = output / "source", output / "html"
    for old in (source, pages, output / "doctrees"):
        shutil.rmtree(old, ignore_errors=True)
    gather(source)
    options = ["--fail-on-warning", "--keep-going", "--quiet", "--builder", "html"]
    status = run_sphinx([*options, "--doctree-dir", str(output / "doctrees"), str(source), str(pages)])
    if status == 0:
        print(f"the site is in {pages}/index.html")
    return status


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_OUTPUT))
