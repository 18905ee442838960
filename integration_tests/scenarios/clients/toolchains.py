# SPDX-License-Identifier: Apache-2.0
"""The client programs: what each one needs, how it is built, how it is run.

A build is kept in the program's own git-ignored folder. It is repeated only if its sources, the protocol or the toolchain change.
Nothing here starts a server. Downloads happen only inside the builds, through each language's own package tool.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

CLIENTS_ROOT = Path(__file__).resolve().parent
PROTO_ROOT = CLIENTS_ROOT.parents[2] / "proto"
PROBE_TIMEOUT_S = 30.0
BUILD_TIMEOUT_S = 540.0
OUTPUT_TAIL_CHARACTERS = 4_000


class BuildError(Exception):
    """A client program could not be built. The message ends with the output of the build."""


def run_bounded(
    command: Sequence[str], *, directory: Path, environment: dict[str, str], timeout_s: float
) -> subprocess.CompletedProcess[str]:
    """Run a command with both outputs in one text. After `timeout_s` it is killed together with its children.

    Raises:
        TimeoutError: the command took longer than `timeout_s`; the message has the end of its output.
    """
    process = subprocess.Popen(
        command,
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        raise TimeoutError(f"no end within {timeout_s:.1f} s; {output[-OUTPUT_TAIL_CHARACTERS:]}") from None
    return subprocess.CompletedProcess(process.args, process.returncode, output)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A program that must be on the PATH, and its minimum major version."""

    command: tuple[str, ...]
    version_pattern: str
    version_least: tuple[int, int]

    def problem(self) -> str | None:
        """Return why the tool cannot be used, or None."""
        name = self.command[0]
        if shutil.which(name) is None:
            return f"{name} is not on the PATH"
        done = subprocess.run(self.command, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False)
        found = re.search(self.version_pattern, done.stdout + done.stderr)
        if done.returncode != 0 or found is None:
            return f"`{' '.join(self.command)}` does not answer"
        version = (int(found[1]), int(found[2] or 0))
        least = ".".join(str(part) for part in self.version_least)
        return f"{name} {version[0]}.{version[1]} is older than {least}" if version < self.version_least else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """One client program: its folder, its tools, its build and its command line."""

    name: str
    tools: tuple[Tool, ...]
    build_command: tuple[str, ...]
    run_command: tuple[str, ...]
    output: str
    source_patterns: tuple[str, ...]

    @property
    def directory(self) -> Path:
        """Folder of the program."""
        return CLIENTS_ROOT / self.name

    def missing(self) -> list[str]:
        """Return the problems of the toolchain; empty if it is complete."""
        return [problem for tool in self.tools if (problem := tool.problem()) is not None]

    def build(self) -> bool:
        """Build the program unless the last build is still valid.

        Returns:
            True if a build ran.

        Raises:
            BuildError: the build failed or took longer than BUILD_TIMEOUT_S.
        """
        with self._lock() as stamp:
            wanted = self._fingerprint()
            if (self.directory / self.output).exists() and stamp.read_text() == wanted:
                return False
            self._run_build()
            stamp.write_text(wanted)
        return True

    @contextmanager
    def _lock(self) -> Generator[Path, None, None]:
        stamp = CLIENTS_ROOT / "build" / f"{self.name}.built"
        stamp.parent.mkdir(exist_ok=True)
        with stamp.open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield stamp

    def _fingerprint(self) -> str:
        digest = hashlib.sha256()
        sources = [path for pattern in self.source_patterns for path in self.directory.glob(pattern)]
        for path in sorted({*sources, *PROTO_ROOT.glob("lograft/v1/*.proto")}):
            digest.update(f"{path.name}\0".encode() + path.read_bytes())
        for tool in self.tools:
            digest.update(subprocess.run(tool.command, capture_output=True, timeout=PROBE_TIMEOUT_S, check=True).stdout)
        return digest.hexdigest()

    def _run_build(self) -> None:
        environment = {**os.environ, "PROTOC": f"{sys.executable} -m grpc_tools.protoc"}
        try:
            done = run_bounded(
                self.build_command, directory=self.directory, environment=environment, timeout_s=BUILD_TIMEOUT_S
            )
        except TimeoutError as error:
            raise BuildError(f"{self.name}: the build: {error}") from error
        if done.returncode != 0:
            tail = done.stdout[-OUTPUT_TAIL_CHARACTERS:]
            raise BuildError(f"{self.name}: `{' '.join(self.build_command)}` exited with {done.returncode}\n{tail}")


CLIENTS = (
    Client(
        name="go",
        tools=(Tool(command=("go", "version"), version_pattern=r"go(\d+)\.(\d+)", version_least=(1, 24)),),
        build_command=("./build.sh",),
        run_command=("build/lograft-client",),
        output="build/lograft-client",
        source_patterns=("*.go", "go.mod", "go.sum", "build.sh"),
    ),
    Client(
        name="java",
        tools=(
            Tool(command=("javac", "-version"), version_pattern=r"javac (\d+)(?:\.(\d+))?", version_least=(17, 0)),
            Tool(command=("mvn", "--version"), version_pattern=r"Maven (\d+)\.(\d+)", version_least=(3, 8)),
        ),
        build_command=("mvn", "--batch-mode", "--no-transfer-progress", "--quiet", "package"),
        run_command=("java", "-jar", "target/lograft-client-0.1.0.jar"),
        output="target/lograft-client-0.1.0.jar",
        source_patterns=("src/**/*.java", "pom.xml"),
    ),
    Client(
        name="node",
        tools=(
            Tool(command=("node", "--version"), version_pattern=r"v(\d+)\.(\d+)", version_least=(20, 0)),
            Tool(command=("npm", "--version"), version_pattern=r"(\d+)\.(\d+)", version_least=(9, 0)),
        ),
        build_command=(
            "npm", "install", "--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts", "--omit=dev",
        ),
        run_command=("node", "main.js"),
        output="node_modules",
        source_patterns=("package.json",),
    ),
)  # fmt: skip
