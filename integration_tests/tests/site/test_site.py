# SPDX-License-Identifier: Apache-2.0
"""The documentation site builds without a warning, and has what the code has: every public name, command, config and error.

Sphinx is in the dependency group `docs`, which `make docs` and `make test` install. Without it the tests are skipped.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import lograft
import pytest
import typer
from lograft import aio, errors, spark, types
from lograft.cli.app import make_app
from lograft.wire.codes import ErrorCode

from brokerd.__main__ import app as brokerd_app
from metaquorum.__main__ import app as metaquorum_app
from metaquorum.metadata.topic_configs import TOPIC_CONFIGS

ROOT = Path(__file__).resolve().parents[3]
SITE = ROOT / "docs" / "site"
BUILD_TIMEOUT_S = 300

pytestmark = [
    pytest.mark.slow,
    pytest.mark.process,
    pytest.mark.skipif(find_spec("furo") is None, reason="the dependency group docs is not installed: make docs"),
]


def run_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the package `sitebuild` on its path, as `make docs` does."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SITE), *filter(None, sys.path)])}
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_S,
        check=False,
        env=environment,
        cwd=ROOT,
    )


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the pages of a site that was built without a warning."""
    output = tmp_path_factory.mktemp("site")
    done = run_python("-m", "sitebuild", str(output))
    assert done.returncode == 0, done.stdout + done.stderr
    return output / "html"


def ids(page: Path) -> set[str]:
    """Return the targets of links in a page."""
    return set(re.findall(r'\bid="([^"]+)"', page.read_text()))


def public_names() -> Iterator[str]:
    """Yield every public name: what the packages list, the methods of what they list, and the classes of errors and types."""
    for module in (lograft, aio, spark):
        for name in module.__all__:
            value = getattr(module, name)
            if hasattr(value, "__path__") or value is errors:
                continue
            yield f"{module.__name__}.{name}"
            if module is not spark and name in ("Admin", "Consumer", "Producer", "FetchedBatch"):
                methods = {each for each in vars(value) if not each.startswith("_")}
                slots = set(getattr(value, "__slots__", ()))
                yield from (f"{module.__name__}.{name}.{method}" for method in sorted(methods - slots))
    for module in (errors, types):
        for name, value in vars(module).items():
            if isinstance(value, type) and value.__module__ == module.__name__ and not name.startswith("_"):
                # The reference has a name where programs import it from: the shortest.
                yield f"lograft.{name}" if name in lograft.__all__ else f"{module.__name__}.{name}"
    yield "lograft.types.Headers"


def commands(name: str, app: typer.Typer) -> Iterator[str]:
    """Yield the words of every command that `--help` shows."""
    groups = [(name, typer.main.get_command(app))]
    while groups:
        words, group = groups.pop()
        for word, command in group.commands.items():  # pyright: ignore[reportAttributeAccessIssue]
            if hasattr(command, "commands"):
                groups.append((f"{words} {word}", command))
            elif not command.hidden:
                yield f"{words} {word}"


def test_every_public_name_is_in_the_reference(pages: Path) -> None:
    """The reference has each public name of `lograft`, `lograft.aio`, `lograft.errors`, `lograft.types` and `lograft.spark`."""
    found = set().union(*(ids(page) for page in (pages / "reference").glob("*.html")))
    names = list(public_names())
    assert len(names) > 100
    assert not [name for name in names if name not in found]


def test_no_private_name_is_in_the_reference(pages: Path) -> None:
    """The reference has no private name."""
    found = set().union(*(ids(page) for page in (pages / "reference").glob("*.html")))
    names = [each for each in found if each.startswith("lograft.")]
    allowed = {"__iter__", "__aiter__", "__await__", "__version__"}
    assert not [name for name in names for part in name.split(".") if part[0] == "_" and part not in allowed]


def test_every_command_and_option_is_in_the_reference(pages: Path) -> None:
    """The reference has each command of the three programs; a hidden option is in none."""
    texts = {
        "lograft": (pages / "reference" / "commands.html").read_text(),
        "brokerd": (pages / "reference" / "servers.html").read_text(),
        "metaquorum": (pages / "reference" / "servers.html").read_text(),
    }
    apps = {"lograft": make_app(), "brokerd": brokerd_app, "metaquorum": metaquorum_app}
    for program, app in apps.items():
        plain = re.sub(r"<[^>]+>", "", texts[program])
        found = list(commands(program, app))
        assert found
        assert not [words for words in found if words not in plain]
    assert "--key-separator" in texts["lograft"]
    assert "--quorum-fetch-port" not in texts["brokerd"]


def test_every_config_and_error_code_has_a_section(pages: Path) -> None:
    """The reference has each config of the controller's table, and each error code with its advice."""
    configs = re.sub(r"<[^>]+>", "", (pages / "reference" / "configs.html").read_text())
    assert not [name for name in TOPIC_CONFIGS if name not in configs]
    codes = (pages / "reference" / "errors.html").read_text()
    assert not [code.name for code in ErrorCode if f'id="code-{code.name.lower().replace("_", "-")}"' not in codes]
    assert codes.count("What to do.") == len(ErrorCode)


def test_a_page_links_only_to_pages_that_exist(pages: Path) -> None:
    """Every relative link of every page, also of the engineering pages, leads to a file and to a target in it."""
    broken: list[str] = []
    targets: dict[Path, set[str]] = {}
    for page in sorted(pages.rglob("*.html")):
        for link in re.findall(r'<a [^>]*href="([^"]+)"', page.read_text()):
            path, _, anchor = link.partition("#")
            if "://" in link or link.startswith("mailto:"):
                continue
            file = (page.parent / path).resolve() if path else page
            if not file.is_file():
                broken.append(f"{page.name}: {link}")
            elif anchor and file.suffix == ".html":
                targets.setdefault(file, ids(file))
                broken += [] if anchor in targets[file] else [f"{page.name}: {link}"]
    assert not broken, "\n".join(broken)


def test_a_warning_fails_the_build(tmp_path: Path) -> None:
    """Links to a page and to a part that do not exist fail the build, and the messages name them."""
    source = tmp_path / "source"
    shutil.copytree(SITE / "_static", source / "_static")
    shutil.copy(SITE / "conf.py", source)
    (source / "index.md").write_text("# Title\n\n[one](nowhere.md)\n\n[two](#no-such-part)\n")
    done = run_python(
        "-c",
        "import sys; from sitebuild.__main__ import build_pages; from pathlib import Path\n"
        "sys.exit(build_pages(Path(sys.argv[1])))",
        str(tmp_path),
    )
    assert done.returncode == 1, done.stdout
    assert "nowhere.md" in done.stderr
    assert "no-such-part" in done.stderr
