# SPDX-License-Identifier: Apache-2.0
"""`make corrupt N=10000`: random damage to copies of real log directories. Then each copy is opened and read.

A seed determines a case: the template, one or two files, and the damage. The laws are in `examine`. To run one case again:
`python -m integration_tests.crash.corrupt --seed 123 --cases 1`.
"""

from __future__ import annotations

import argparse
import logging
import random
import shutil
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from integration_tests.crash.damage import DAMAGES, INDEX_DAMAGES
from integration_tests.crash.examine import Examination
from integration_tests.crash.templates import PLAN, Kind, Template, build
from storage.files.names import (
    CLEANER_FILE,
    DAMAGE_FILE,
    EPOCH_FILE,
    INDEX_SUFFIX,
    LOG_START_FILE,
    LOG_SUFFIX,
    RECOVERY_POINT_FILE,
    SEAL_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
)
from storage.testing.mutants import Mutant, applied

DEFAULT_CASES = 10_000
PROBLEMS_SHOWN = 20
LOG_SUFFIXES = (LOG_SUFFIX, SWAP_SUFFIX)
"""Suffixes of files with batches. They get half of all damage."""
SMALL_FILES = (RECOVERY_POINT_FILE, LOG_START_FILE, EPOCH_FILE, CLEANER_FILE, DAMAGE_FILE)
"""Files that exist once per log. Together with the seals they get a quarter of all damage."""

MUTANT_FIRST_SEED = 5_000
MUTANT_CASES = 1_500


@dataclass(slots=True, kw_only=True)
class CorruptionRun:
    """The result of a run: counts, and (seed, description, problem) for each broken law."""

    cases: int = 0
    damages: Counter[str] = field(default_factory=Counter[str])
    counts: Counter[str] = field(default_factory=Counter[str])
    problems: list[tuple[int, str, str]] = field(default_factory=list[tuple[int, str, str]])


def damage_copy(template: Template, path: Path, rng: random.Random) -> dict[str, str]:
    """Damage one file of a copy, sometimes two, and return what was done to which file."""
    done: dict[str, str] = {}
    for _ in range(rng.choice((1, 1, 1, 2))):
        files = [file for file in sorted(path.iterdir()) if file.stat().st_size > 0]
        logs = [file for file in files if file.suffix in LOG_SUFFIXES]
        beside = [file for file in files if file.suffix == SEAL_SUFFIX or file.name in SMALL_FILES]
        file = rng.choice(rng.choice((logs, logs, files, beside)))
        # A whole older recovery point means a lost write of the only file that says what was flushed. Nothing can detect that.
        older = template.older / file.name
        older_content = older.read_bytes() if older.exists() and file.name != RECOVERY_POINT_FILE else b""
        damage = rng.choice(INDEX_DAMAGES if file.suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX) else DAMAGES)
        content = file.read_bytes()
        changed = damage(rng, content, older_content)
        if changed != content:
            file.write_bytes(changed)
            done[file.name] = f"{done[file.name]}, {damage.__name__}" if file.name in done else damage.__name__
    return done


def run_case(templates: list[Template], root: Path, seed: int, into: CorruptionRun) -> None:
    """Damage one copy and examine it."""
    rng = random.Random(seed)
    template = rng.choice(templates)
    path = root / "copy"
    shutil.copytree(template.path, path)
    done = damage_copy(template, path, rng)
    examined = Examination(template, path, set(done), rng).run()
    shutil.rmtree(path)
    into.cases += 1
    into.counts += examined.counts
    for name, damage in done.items():
        into.damages[f"{Path(name).suffix.lstrip('.') or name}: {damage}"] += 1
    what = f"template {template.name}: " + ", ".join(f"{damage} of {name}" for name, damage in done.items())
    into.problems += [(seed, what, problem) for problem in examined.problems]


def build_templates(root: Path) -> list[Template]:
    """Write all templates below an empty directory."""
    return [build(root, number) for number in range(len(PLAN))]


def run(
    root: Path, templates: list[Template], *, first_seed: int, cases: int, stop_at_problem: bool = False
) -> CorruptionRun:
    """Run cases with consecutive seeds on copies below `root`."""
    done = CorruptionRun()
    for seed in range(first_seed, first_seed + cases):
        run_case(templates, root, seed, done)
        if done.problems and stop_at_problem:
            break
    return done


def find(mutant: Mutant, root: Path, templates: list[Template]) -> str | None:
    """Return what the corruption run finds about a mutant; None if it finds nothing."""
    # The mutants' mistakes show in plain logs, and sooner there.
    plain = [template for template in templates if template.kind is Kind.PLAIN]
    with applied(mutant):
        done = run(root, plain, first_seed=MUTANT_FIRST_SEED, cases=MUTANT_CASES, stop_at_problem=True)
    return f"seed {done.problems[0][0]}, {done.problems[0][1]}: {done.problems[0][2]}" if done.problems else None


def report(done: CorruptionRun, seconds: float) -> str:
    """Return the lines to print."""
    lines = [f"corruption: {done.cases} cases, {seconds:.1f} s"]
    lines += [f"  {count:7d} {name}" for name, count in sorted(done.counts.items())]
    lines.append("damage done: " + ", ".join(f"{name} {count}" for name, count in sorted(done.damages.items())))
    for seed, what, problem in done.problems[:PROBLEMS_SHOWN]:
        lines.append(f"BROKEN seed {seed}, {what}:\n    {problem}")
    if done.problems:
        seeds = {seed for seed, _, _ in done.problems}
        lines.append(f"{len(seeds)} seeds broke a law; one again: ")
        lines.append(f"  python -m integration_tests.crash.corrupt --cases 1 --seed {min(seeds)}")
    else:
        lines.append("never wrong bytes, never a silent gap, never a crash")
    return "\n".join(lines)


def main() -> int:
    """Run and print. Return 1 if a law was broken."""
    parser = argparse.ArgumentParser(description="random damage to real log directories")
    parser.add_argument("--cases", type=int, default=DEFAULT_CASES)
    parser.add_argument("--seed", type=int, default=0, help="first seed")
    parser.add_argument("--directory", type=Path, default=None, help="existing directory to work below")
    arguments = parser.parse_args()
    logging.disable(logging.ERROR)
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory(dir=arguments.directory, prefix="lograft-corrupt-") as root:
        templates = build_templates(Path(root))
        done = run(Path(root), templates, first_seed=arguments.seed, cases=arguments.cases)
    print(report(done, time.monotonic() - started_s))
    return int(bool(done.problems))


if __name__ == "__main__":
    raise SystemExit(main())
