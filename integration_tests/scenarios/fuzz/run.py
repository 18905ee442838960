# SPDX-License-Identifier: Apache-2.0
"""`make fuzz`: mutated input of clients at a public port (`public_port`), and of servers at internal ports (`internal_port`).

    python -m integration_tests.scenarios.fuzz.run --inputs 20000 --seed 1 --only servers

Exit status: 0, or 1 when a part found something.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from integration_tests.scenarios.fuzz import internal_port, public_port


def main() -> int:
    """Run both parts. Return 1 if one of them found a problem."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=20_000, help="inputs of each part")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=("clients", "servers"), help="one part: what clients say, or what servers do")
    arguments = parser.parse_args()
    print(f"SEED {arguments.seed}")
    status = 0
    with tempfile.TemporaryDirectory(prefix="lograft-fuzz-") as name:
        if arguments.only != "servers":
            directory = Path(name) / "clients"
            directory.mkdir()
            status |= public_port.report(*public_port.run(directory, arguments.inputs, arguments.seed))
        if arguments.only != "clients":
            directory = Path(name) / "servers"
            directory.mkdir()
            outcome = internal_port.run(directory, arguments.inputs, arguments.seed)
            status |= internal_port.report(outcome, arguments.inputs, arguments.seed)
    return status


if __name__ == "__main__":
    raise SystemExit(main())
