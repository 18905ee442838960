# SPDX-License-Identifier: Apache-2.0
"""The command `lograft`.

Owns the entry point. typer and rich are an extra of the distribution (`lograft[cli]`) and are imported only here and
below, never by `import lograft`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Final

EXIT_FAILURE: Final = 1
EXIT_USAGE: Final = 2


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command and end the process: 0 worked, 1 failed, 2 wrong usage.

    Args:
        arguments: words after the program's name; None: those of the process.
    """
    # gRPC tells of every connection that a broker closes; the command says itself what matters.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    try:
        from lograft.cli.app import run
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich", "click"):
            raise
        print(f"lograft: error: {error.name} is not installed; pip install 'lograft[cli]'", file=sys.stderr)
        raise SystemExit(EXIT_FAILURE) from None
    raise SystemExit(run(arguments))
