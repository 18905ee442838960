# SPDX-License-Identifier: Apache-2.0
"""The folder that Sphinx reads: the pages of `docs/site`, the engineering pages of `docs/`, and the generated parts.

It owns where each page of the repository is in the site, and so how a relative link to it must read there. A link to any other file
of the repository becomes text, because the site has no such file. A link to nothing stays, and Sphinx reports it.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from sitebuild.api import types_of_values
from sitebuild.commands import commands_of_clients, commands_of_servers
from sitebuild.configs import config_sections
from sitebuild.errors import error_classes, error_codes

ROOT: Final = Path(__file__).resolve().parents[3]
SITE: Final = ROOT / "docs" / "site"
INTERNALS: Final = "internals"
"""Folder of the site for the engineering pages."""

GENERATED: Final[Mapping[str, Callable[[], str]]] = {
    "commands": commands_of_clients,
    "server commands": commands_of_servers,
    "configs": config_sections,
    "types": types_of_values,
    "error codes": error_codes,
    "error classes": error_classes,
}
"""What takes the place of a line `<!-- generated: NAME -->` in a page."""

_MARK = re.compile(r"^<!-- generated: ([a-z ]+) -->$", re.MULTILINE)
_LINK = re.compile(r"(?P<text>\[(?:[^\[\]]|\[[^\[\]]*\])*\])\((?P<target>[^()\s#]+)(?P<anchor>#[^()\s]*)?\)")
_FENCE = re.compile(r"^ *(```+|~~~+|:::+)")


def gather(target: Path) -> None:
    """Write all sources of the site into a new folder."""
    shutil.copytree(SITE, target, ignore=shutil.ignore_patterns("__pycache__", "sitebuild"))
    places = pages_of_the_site()
    for page, place in places.items():
        text = with_links(page.read_text(), page, places)
        (target / place).parent.mkdir(parents=True, exist_ok=True)
        (target / place).write_text(_MARK.sub(lambda found: GENERATED[found[1]](), text))


def pages_of_the_site() -> dict[Path, str]:
    """Return the place in the site of each Markdown page of the repository that is in it."""
    places = {page: page.relative_to(SITE).as_posix() for page in sorted(SITE.rglob("*.md"))}
    for page in sorted([*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "adr").glob("*.md")]):
        places[page] = f"{INTERNALS}/{page.relative_to(ROOT / 'docs').as_posix()}"
    places[ROOT / "CHANGELOG.md"] = f"{INTERNALS}/changelog.md"
    places[ROOT / "CONTRIBUTING.md"] = f"{INTERNALS}/contributing.md"
    return places


def with_links(text: str, page: Path, places: Mapping[Path, str]) -> str:
    """Return the text of a page with links that are right in the site."""
    here = Path(places[page]).parent

    def link(found: re.Match[str]) -> str:
        target, anchor = found["target"], found["anchor"] or ""
        if "://" in target or target.startswith("mailto:"):
            return found[0]
        file = Path(os.path.normpath(page.parent / target))
        if file in places:
            return f"{found['text']}({os.path.relpath(places[file], here)}{anchor})"
        if file.exists() and not file.is_relative_to(SITE):
            return found["text"][1:-1]
        return found[0]

    lines, fence = [], ""
    for line in text.split("\n"):
        found = _FENCE.match(line)
        if found and not found[1].startswith(":"):
            fence = "" if fence and found[1].startswith(fence) else fence or found[1]
        lines.append(line if fence else _LINK.sub(link, line))
    return "\n".join(lines)
