# SPDX-License-Identifier: Apache-2.0
"""Short proofs of exactly once, and their judges: what is missing or doubled is found. The Makefile runs the long proofs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from lograft.types import ConsumerRecord

from integration_tests.scenarios.exactly_once import matrix, replay, streaming, transform
from integration_tests.scenarios.exactly_once.compare import compare, sequences
from integration_tests.scenarios.exactly_once.matrix_rows import ROWS
from integration_tests.scenarios.exactly_once.processes import Program
from integration_tests.scenarios.exactly_once.spark_tasks import (
    END,
    PART_WAY,
    Notes,
    Script,
    Unwanted,
    batches,
    fields_of,
    records_wanted,
    script_of,
)

WANTED = {b"a": [b"1", b"2", b"3"], b"b": [b"1"]}


def test_a_topic_as_it_must_be_has_no_difference() -> None:
    """Each key with its values, in order."""
    assert compare(WANTED, {key: list(values) for key, values in WANTED.items()}).is_none


@pytest.mark.parametrize(
    ("found", "counts"),
    [
        ({b"a": [b"1", b"3"], b"b": [b"1"]}, (1, 0, 0, 0)),
        ({b"a": [b"1", b"2", b"3"]}, (1, 0, 0, 0)),
        ({b"a": [b"1", b"2", b"3", b"2"], b"b": [b"1"]}, (0, 1, 0, 0)),
        ({b"a": [b"1", b"2", b"3"], b"b": [b"1", b"1", b"1"]}, (0, 2, 0, 0)),
        ({b"a": [b"1", b"2", b"3", b"4"], b"b": [b"1"]}, (0, 0, 1, 0)),
        ({b"a": [b"1", b"2", b"3"], b"b": [b"1"], b"c": [b"1"]}, (0, 0, 1, 0)),
        ({b"a": [b"2", b"1", b"3"], b"b": [b"1"]}, (0, 0, 0, 1)),
        # As many records as there must be, and two of them wrong.
        ({b"a": [b"1", b"2", b"2"], b"b": [b"1"]}, (1, 1, 0, 0)),
    ],
)
def test_a_difference_is_found_and_counted(
    found: dict[bytes, Sequence[bytes]], counts: tuple[int, int, int, int]
) -> None:
    """Missing, doubled, foreign records, and keys out of order."""
    difference = compare(WANTED, found)
    assert (difference.missing, difference.doubled, difference.foreign, difference.moved) == counts
    assert difference.examples
    assert not difference.is_none


def test_order_counts_only_where_it_is_asked_for() -> None:
    """Records in another order are all there."""
    assert compare({b"a": [b"1", b"2"]}, {b"a": [b"2", b"1"]}, in_order=False).is_none


def test_values_of_a_key_are_in_the_order_of_their_offsets() -> None:
    """Whatever the order in which a reader got them."""
    records = [ConsumerRecord("t", 0, offset, 0, b"a", b"%d" % offset, ()) for offset in range(5)]
    random.Random(1).shuffle(records)
    assert sequences(records) == {b"a": [b"0", b"1", b"2", b"3", b"4"]}


def rows(script: Script, task: int, attempt: int, count: int = 2_000) -> list[bytes]:
    """Return the keys that an attempt gives away."""
    return [key for batch in batches(range(count), script, task, attempt) for key in batch.column(0).to_pylist()]


def test_attempts_have_the_same_rows_in_the_order_of_their_script(tmp_path: Path) -> None:
    """All of them, once; another order only where it is asked for."""
    plain, shuffled = Script(directory=str(tmp_path)), Script(directory=str(tmp_path), shuffles=True)
    first = rows(plain, 0, 0)
    assert first == rows(plain, 0, 1)
    assert set(first) == set(records_wanted(2_000))
    assert rows(shuffled, 0, 0) != rows(shuffled, 0, 1)
    assert sorted(rows(shuffled, 0, 1)) == sorted(first)
    assert script_of(fields_of(shuffled)) == shuffled


def test_an_attempt_fails_when_it_has_given_away_most_of_its_rows(tmp_path: Path) -> None:
    """Only the tasks and attempts that the script names; each leaves a note."""
    script = Script(directory=str(tmp_path), fails_below=1, failing=(2,))
    given: list[Any] = []
    with pytest.raises(Unwanted, match="attempt 0 of task 2"):
        given.extend(batches(range(2_000), script, 2, 0))
    assert sum(each.num_rows for each in given) == 1_800
    assert Notes(tmp_path).of("failed") == [(2, 0)]
    assert len(rows(script, 2, 1)) == len(rows(script, 1, 0)) == 2_000
    assert Notes(tmp_path).of("ended") == [(1, 0), (2, 1)]


@pytest.mark.parametrize(("point", "given"), [(PART_WAY, 1_800), (END, 1_750)])
def test_a_first_attempt_waits_at_its_gate(tmp_path: Path, point: str, given: int) -> None:
    """Until the proof opens it. Later attempts do not wait."""
    notes, script = Notes(tmp_path), Script(directory=str(tmp_path), waits_at=point, waiting=(0,))
    assert len(rows(script, 0, 1)) == len(rows(script, 1, 0)) == 2_000
    count = 0
    for batch in batches(range(2_000), script, 0, 0):
        count += batch.num_rows
        if count >= given:
            notes.open_gate()
    assert notes.of(point) == [(0, 0)]
    assert count == 2_000


def test_what_a_row_came_to_is_in_the_table() -> None:
    """A line for each row, with what was missing and doubled."""
    tally = matrix.Tally(20, hits=20, missed=1, missing=3, doubled=2, staged_s=4.25, seconds=210)
    lines = matrix.table({"leader-killed-decided": tally}).splitlines()
    assert lines[0].split()[:6] == ["row", "runs", "hit", "missed", "reruns", "missing"]
    assert lines[1].split() == ["leader-killed-decided", *["20", "20", "1", "0", "3", "2", "0", "0", "4.2", "10.0"]]


def test_a_replay_that_differs_is_found() -> None:
    """From a filter over everything, and from what was sent."""
    sent = replay.Sum()
    sent.add(b"value")
    good = [*sent.pair, 17]
    assert replay.differences({"key": (sent, good, good)}) == []
    assert "filter" in replay.differences({"key": (sent, good, [*sent.pair, 18])})[0]
    assert "was sent" in replay.differences({"key": (sent, [2, 3, 4], [2, 3, 4])})[0]


def test_growth_of_memory_is_found() -> None:
    """A task may need more than an idle worker, but not more and more with the length of the log."""
    flat = {"worker": 250 * replay.MIB, "broker": 400 * replay.MIB}
    one = {"worker": 150 * replay.MIB, "broker": 100 * replay.MIB}
    assert replay.growths({"one": one, "tenth": flat, "all": flat}) == []
    leaking = {"worker": 290 * replay.MIB, "broker": 600 * replay.MIB}
    found = replay.growths({"one": one, "tenth": flat, "all": leaking})
    assert [each.split(",")[0] for each in found] == [
        "all: the worker needs 140 MiB more than for one",
        "all: the worker needs 40 MiB more than for tenth",
        "all: the broker needs 200 MiB more than for tenth",
    ]
    assert replay.spread(list(range(100)), 3) == [0, 49, 99]


def test_the_checkpoint_says_how_many_batches_have_begun(tmp_path: Path) -> None:
    """The number after the last file of a log, whatever else lies there."""
    assert streaming._logged(tmp_path) == 0
    for name in ("0", "1", ".1.crc", "2"):
        (tmp_path / name).touch()
    assert streaming._logged(tmp_path) == 3


def test_a_program_is_heard_and_ends(tmp_path: Path) -> None:
    """What it says comes line by line; without a word in time there is none."""
    program = Program("json.tool", ["--json-lines", "--compact"], tmp_path / "log")
    program.tell('{"a": 1}')
    program.stop_all()
    assert program.hear(0.1) is None
    program.go_on()
    program.tell('{"b": 2}')
    program.end_input()
    assert program.hear(30.0) == '{"a":1}'
    assert program.wait(30.0) == 0
    assert program.words == ['{"a":1}', '{"b":2}']
    program.kill()
    assert program.hear(1.0) is None


def test_a_program_stands_still_and_is_killed(tmp_path: Path) -> None:
    """SIGSTOP, SIGCONT and SIGKILL reach it."""
    program = Program("json.tool", [], tmp_path / "log")
    program.stop_all()
    assert psutil.Process(program.process.pid).status() == psutil.STATUS_STOPPED
    program.go_on()
    assert psutil.Process(program.process.pid).status() != psutil.STATUS_STOPPED
    program.kill()
    assert program.process.returncode == -9
    assert not program.is_running


@pytest.mark.process
@pytest.mark.slow
def test_killed_programs_transform_each_record_once(tmp_path: Path) -> None:
    """Both kinds of client, killed somewhere; the output has each input once, and nothing is left."""
    outcome = transform.prove(tmp_path, kills=4, seed=1, pairs=0)
    assert outcome.problems == []
    assert int(str(outcome.figures["records"])) > 0


@pytest.mark.process
@pytest.mark.slow
def test_offsets_that_are_committed_apart_are_found(tmp_path: Path) -> None:
    """The judge finds what a program loses that commits its offsets before its records."""
    outcome = transform.prove(tmp_path, kills=12, seed=1, pairs=0, mutant="offsets-apart")
    assert any("missing" in problem for problem in outcome.problems)


@pytest.mark.process
@pytest.mark.slow
def test_rows_of_the_matrix_publish_once_without_spark(tmp_path: Path) -> None:
    """A leader is killed between decision and publication, and a driver stands still while another one commits."""
    names = ["leader-killed-decided", "zombie-driver"]
    outcome = matrix.prove(tmp_path, rows=names, runs=1, seed=1, budget_s=480, records=2_000, has_spark=False)
    assert outcome.problems == []


@pytest.mark.process
@pytest.mark.spark
@pytest.mark.slow
def test_rows_of_the_matrix_publish_once(tmp_path: Path) -> None:
    """Every first attempt fails, and the second one has its rows in another order; and a job that fails after its decision."""
    outcome = matrix.prove(tmp_path, rows=["other-row-order", "lost-reply"], runs=1, seed=1, budget_s=480)
    assert outcome.problems == []


def test_every_row_is_in_the_documentation() -> None:
    """Under its name."""
    text = (Path(__file__).parents[3] / "docs" / "testing.md").read_text()
    for row in ROWS:
        assert row in text
