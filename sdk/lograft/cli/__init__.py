# SPDX-License-Identifier: Apache-2.0
"""The command `lograft`.

This module has the entry point. typer and rich are an extra of the distribution (`lograft[cli]`). Only this package imports
them; `import lograft` does not.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Final

EXIT_FAILURE: Final = 1
EXIT_USAGE: Final = 2


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command and end the process with exit code 0 (success), 1 (failure) or 2 (wrong usage).

    Args:
        arguments: words after the program's name; None means those of the process.
    """
    # gRPC reports every connection that a broker closes. The command itself reports what matters.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    try:
        from lograft.cli.app import run
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich", "click"):
            raise
        print(f"lograft: error: {error.name} is not installed; pip install 'lograft[cli]'", file=sys.stderr)
        raise SystemExit(EXIT_FAILURE) from None
    raise SystemExit(run(arguments))
