# SPDX-License-Identifier: Apache-2.0
"""SQL databases for proofs and tests: SQLite, and private servers of PostgreSQL and MariaDB from the system's packages.

Owns the server processes: each has its own temporary directory and a port of the loopback address. Servers refuse to run as root, so
root starts them as the user `postgres`, `mysql` or `nobody`. They do not wait for the disk: proofs kill clients, not databases.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final

from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

from integration_tests.harness.wait import wait_for
from metaquorum.testing.ports import LOOPBACK, free_port

SETUP_TIMEOUT_S: Final = 120
START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 30
PROGRAM_PATHS: Final = ("usr/lib/postgresql/*/bin", "usr/sbin")
"""Where to look for programs besides the PATH, from the root folder: Debian keeps those of servers out of it."""

DATABASES: Final = ("sqlite", "postgresql", "mariadb")


def why_missing(database: str) -> str:
    """Return why a database cannot run here; empty if it can."""
    needed = {"sqlite": (), "postgresql": ("initdb", "postgres"), "mariadb": ("mariadb-install-db", "mariadbd")}[
        database
    ]
    missing = [program for program in needed if _program(program) is None]
    if missing:
        return f"no {' and no '.join(missing)} on this machine: install the package {database.removesuffix('ql')}"
    if needed and os.geteuid() == 0 and shutil.which("setpriv") is None:
        return "no setpriv on this machine, and a database server does not run as root"
    return ""


@contextmanager
def running_database(database: str) -> Iterator[str]:
    """Run an empty database in this block, and yield its URL for SQLAlchemy."""
    assert not why_missing(database), why_missing(database)
    with tempfile.TemporaryDirectory(prefix=f"lograft-{database}-") as name, _SERVERS[database](Path(name)) as url:
        yield url


@contextmanager
def _sqlite(directory: Path) -> Iterator[str]:
    yield f"sqlite:///{directory / 'database.sqlite'}"


@contextmanager
def _postgresql(directory: Path) -> Iterator[str]:
    user = _give_away(directory, "postgres")
    data, port = directory / "data", free_port()
    _set_up(directory, user, "initdb", "-D", data, "-U", "lograft", "-A", "trust", "-E", "UTF8", "--no-sync")
    settings = {
        "listen_addresses": LOOPBACK,
        "port": port,
        "unix_socket_directories": "",
        "fsync": "off",
        "max_connections": 50,
    }
    options = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
    url = f"postgresql+psycopg://lograft@{LOOPBACK}:{port}/postgres"
    # SIGINT is its fast shutdown: it does not wait for clients.
    with _server(directory, user, ["postgres", "-D", data, *options], url, stop=signal.SIGINT):
        yield url


@contextmanager
def _mariadb(directory: Path) -> Iterator[str]:
    user = _give_away(directory, "mysql")
    data, port = directory / "data", free_port()
    _set_up(
        directory,
        user,
        *("mariadb-install-db", "--no-defaults", f"--datadir={data}"),
        *("--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"),
    )
    command = [
        *("mariadbd", "--no-defaults", f"--datadir={data}", f"--port={port}", f"--bind-address={LOOPBACK}"),
        *(f"--socket={directory / 'socket'}", f"--pid-file={directory / 'pid'}", "--skip-name-resolve"),
        *("--innodb-flush-log-at-trx-commit=0", "--innodb-buffer-pool-size=64M", "--skip-log-bin"),
    ]
    admin = f"mysql+pymysql://root@{LOOPBACK}:{port}/mysql"
    with _server(directory, user, command, admin, stop=signal.SIGTERM):
        engine = create_engine(admin)
        with engine.begin() as connection:
            connection.execute(text("CREATE DATABASE lograft CHARACTER SET utf8mb4"))
        engine.dispose()
        yield f"mysql+pymysql://root@{LOOPBACK}:{port}/lograft"


_SERVERS: Final[Mapping[str, Callable[[Path], AbstractContextManager[str]]]] = {
    "sqlite": _sqlite,
    "postgresql": _postgresql,
    "mariadb": _mariadb,
}


@contextmanager
def _server(
    directory: Path, user: Sequence[str], command: Sequence[object], url: str, *, stop: signal.Signals
) -> Iterator[None]:
    """Run a server process until the end of the block. It ends with this process, too."""
    log_path = directory / "server.log"
    setpriv = shutil.which("setpriv")
    with_parent = [] if setpriv is None else [setpriv, *user, f"--pdeathsig={stop.name.removeprefix('SIG')}"]
    with log_path.open("ab") as log:
        process = subprocess.Popen([*with_parent, *_words(command)], cwd=directory, stdout=log, stderr=log)
    engine = create_engine(url)

    def is_serving() -> bool:
        if process.poll() is not None:
            raise RuntimeError(f"{command[0]} ended before it served:\n{log_path.read_text(errors='replace')[-4000:]}")
        try:
            engine.connect().close()
        except OperationalError:
            return False
        return True

    try:
        wait_for(is_serving, timeout_s=START_TIMEOUT_S, what=f"{command[0]} to serve")
        engine.dispose()
        yield
    finally:
        engine.dispose()
        process.send_signal(stop)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _set_up(directory: Path, user: Sequence[str], *command: object) -> None:
    as_user = ["setpriv", *user] if user else []
    done = subprocess.run(
        [*as_user, *_words(command)],
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SETUP_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}:\n{done.stdout}")


def _give_away(directory: Path, wanted: str) -> list[str]:
    """Give the directory to a user that is not root, and return the options of setpriv that run a program as that user."""
    if os.geteuid() != 0:
        return []
    users = {each.pw_name: each for each in pwd.getpwall()}
    user = users.get(wanted) or users["nobody"]
    os.chown(directory, user.pw_uid, user.pw_gid)
    return [f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]


def _words(command: Sequence[object]) -> list[str]:
    """Return a command with the path of its program."""
    program = _program(str(command[0]))
    assert program is not None, f"no {command[0]} on this machine"
    return [program, *map(str, command[1:])]


def _program(name: str) -> str | None:
    """Return the path of a program; None if it is not on this machine."""
    folders = [str(folder) for pattern in PROGRAM_PATHS for folder in sorted(Path("/").glob(pattern), reverse=True)]
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *folders]))
