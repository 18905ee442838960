# SPDX-License-Identifier: Apache-2.0
"""Short corruption runs, and what their check can distinguish; `make corrupt` runs the long ones."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration_tests.crash import corrupt, damage
from integration_tests.crash.examine import EPOCH_LOST, EPOCH_START, OLDER, Examination
from integration_tests.crash.templates import Placed, Template, build
from storage.testing.mutants import MUTANTS, Finder, Mutant

SHORT_FIRST_SEED = 5_000
SHORT_CASES = 80
SHARED_MEMORY = "/dev/shm"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory on tmpfs where there is one: a real file system on which a sync costs nothing."""
    if not os.access(SHARED_MEMORY, os.W_OK):
        yield tmp_path_factory.mktemp("corruption")
        return
    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY, prefix="lograft-corrupt-") as name:
        yield Path(name)


@pytest.fixture(scope="module")
def templates(root: Path) -> list[Template]:
    """All templates, written once."""
    return corrupt.build_templates(root)


def test_short_run_finds_nothing_wrong(root: Path, templates: list[Template]) -> None:
    """Never wrong bytes, never a silent gap, never a crash; and much was damaged."""
    done = corrupt.run(root, templates, first_seed=SHORT_FIRST_SEED, cases=SHORT_CASES)
    assert done.problems == []
    assert done.cases == SHORT_CASES
    assert done.counts["lost batches"] > SHORT_CASES
    assert done.counts["intact batches"] > SHORT_CASES
    assert "never wrong bytes" in corrupt.report(done, 1.0)


@pytest.mark.parametrize(
    "mutant", [each for each in MUTANTS if each.finder is Finder.CORRUPTION], ids=lambda mutant: mutant.name
)
def test_mutants_are_found(root: Path, templates: list[Template], mutant: Mutant) -> None:
    """Each wrong decision about damage is seen by the run that is to find it, and the report names the seed."""
    found = corrupt.find(mutant, root, templates)
    assert found is not None
    assert found.startswith("seed 5")


def test_same_seed_does_the_same_damage(root: Path, templates: list[Template]) -> None:
    """A failing seed can be run again."""
    done = [corrupt.CorruptionRun() for _ in range(2)]
    for run in done:
        for seed in range(20):
            corrupt.run_case(templates, root, seed, run)
    assert done[0].damages == done[1].damages
    assert done[0].counts == done[1].counts


@pytest.mark.parametrize("kind", {*damage.DAMAGES, *damage.INDEX_DAMAGES}, ids=lambda kind: kind.__name__)
def test_damage_is_what_its_seed_says(kind: damage.Damage) -> None:
    """Every kind of damage gives the same result for the same seed, and changes something for most seeds."""
    content = random.Random(1).randbytes(3_000)
    older = random.Random(2).randbytes(2_000)
    changed = [kind(random.Random(seed), content, older) for seed in range(20)]
    assert changed == [kind(random.Random(seed), content, older) for seed in range(20)]
    assert sum(each != content for each in changed) > 10
    assert kind(random.Random(1), content, b"") == kind(random.Random(1), content, b"")


def template_of(templates: list[Template], stop: str) -> Template:
    """Return a template that stopped so."""
    return next(template for template in templates if template.name.endswith(f"({stop})"))


def examine(template: Template, root: Path, changes: list[tuple[Placed, int, bytes]]) -> Examination:
    """Examine a copy in which bytes of batches (from an offset inside the batch) are replaced."""
    path = root / "changed"
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(template.path, path)
    for placed, at, data in changes:
        file = path / placed.file_name
        content = bytearray(file.read_bytes())
        content[placed.position + at : placed.position + at + len(data)] = data
        file.write_bytes(content)
    examination = Examination(template, path, {placed.file_name for placed, _, _ in changes}, random.Random(0))
    examination.run()
    return examination


def test_one_bad_batch_is_lost_and_nothing_else(root: Path, templates: list[Template]) -> None:
    """A flipped payload costs exactly its batch."""
    template = template_of(templates, "clean")
    victim = template.placed[4]
    result = examine(template, root, [(victim, len(victim.batch.data) - 1, b"\xff")]).result
    assert result.problems == []
    assert result.counts["lost batches"] == 1
    assert result.counts["intact batches"] == len(template.placed) - 1


def test_leader_epoch_is_counted_apart(root: Path, templates: list[Template]) -> None:
    """No CRC covers the leader epoch of a batch: a higher one in the last batch is served, and counted."""
    template = template_of(templates, "clean")
    victim = template.placed[-1]
    result = examine(template, root, [(victim, EPOCH_START + 3, b"\x7f")]).result
    assert result.problems == []
    assert result.counts[EPOCH_LOST] == 1


def test_older_batch_in_its_place_is_counted_apart(root: Path, templates: list[Template]) -> None:
    """A whole older batch at its own offset passes every CRC. A lost write is distinguished from wrong bytes."""
    template = template_of(templates, "clean")
    served = Examination(template, template.path, set(), random.Random(0))
    older = next(iter(template.older_batches))
    served._compare_batch(template.placed[0].batch.header.base_offset, older)
    assert served.result.problems == []
    assert served.result.counts[OLDER] == 1
    served._compare_batch(template.placed[0].batch.header.base_offset, b"something else".ljust(100))
    assert "wrong bytes" in served.result.problems[0]


def test_every_stop_is_among_the_templates(root: Path, templates: list[Template]) -> None:
    """Each way to stop has templates with several segments, a truncation behind them, and an older state."""
    assert len({template.name.partition("(")[2] for template in templates}) == 4
    assert (
        sum(len({placed.file_name for placed in template.placed}) > 2 for template in templates) > len(templates) // 2
    )
    assert all(template.older_batches for template in templates)
    (root / "again").mkdir()
    again = build(root / "again", 0)
    assert [each.batch.data for each in again.placed] == [each.batch.data for each in templates[0].placed]
