# SPDX-License-Identifier: Apache-2.0
"""`lograft.offsets` without SQLAlchemy, and `lograft` without it."""

from __future__ import annotations

import subprocess
import sys


def _run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    return done.stdout.strip()


def test_missing_sqlalchemy_is_named_with_its_extra() -> None:
    """The error says what to install."""
    program = (
        "import sys\n"
        "sys.modules['sqlalchemy'] = None\n"
        "from lograft.errors import MissingExtraError\n"
        "try:\n    import lograft.offsets\n"
        "except MissingExtraError as error:\n    print(error)\n"
    )
    assert _run(program) == "lograft.offsets needs SQLAlchemy: pip install 'lograft[sql]'"


def test_clients_do_not_load_sqlalchemy() -> None:
    """Only who uses `lograft.offsets` pays for it."""
    assert _run("import sys, lograft; from lograft import Consumer; print('sqlalchemy' in sys.modules)") == "False"
