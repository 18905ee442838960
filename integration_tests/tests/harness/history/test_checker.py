# SPDX-License-Identifier: Apache-2.0
"""The judge of histories finds every planted anomaly, and flags no history that is merely uncertain."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from integration_tests.harness.history.checker import check
from integration_tests.harness.history.events import Event, HistoryFile, Kind, Type, parse_line, read_history

TP = "t-0"
SECOND_NS = 1_000_000_000


class Story:
    """Writes a history by hand, one event per second by default."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.op = 0

    def add(self, op: int, process: str, type: Type, kind: Kind, **fields: Any) -> None:
        """Append an event."""
        time_ns = len(self.events) * SECOND_NS
        self.events.append(Event(op=op, process=process, type=type, kind=kind, time_ns=time_ns, **fields))

    def begin(self, process: str, kind: Kind, **fields: Any) -> int:
        """Append an invocation."""
        self.op += 1
        self.add(self.op, process, Type.INVOKE, kind, **fields)
        return self.op

    def send(self, value: str, offset: int | None, type: Type = Type.OK, *, process: str = "s", tp: str = TP) -> None:
        """Send one value and note its result."""
        op = self.begin(process, Kind.SEND, partition=tp, values=[value])
        self.add(op, process, type, Kind.SEND, offsets=[offset] if offset is not None else [])

    def poll(self, *records: tuple[int, str], process: str = "c", type: Type = Type.OK) -> None:
        """Read some records of the partition."""
        op = self.begin(process, Kind.POLL)
        self.add(op, process, type, Kind.POLL, records={TP: records})

    def assign(self, offset: int, *, process: str = "c") -> None:
        """Begin to read from an offset."""
        op = self.begin(process, Kind.ASSIGN)
        self.add(op, process, Type.OK, Kind.ASSIGN, offsets_by_partition={TP: offset})

    def end(self, offset: int, *, type: Type = Type.OK) -> None:
        """Ask for the end of the partition."""
        op = self.begin("e", Kind.END)
        self.add(op, "e", type, Kind.END, offsets_by_partition={TP: offset})

    def read(self, *records: tuple[int, str], end: int | None = None, tp: str = TP) -> None:
        """Read the whole partition at the end."""
        op = self.begin("final", Kind.READ, partition=tp)
        ends = {tp: len(records) if end is None else end}
        self.add(op, "final", Type.OK, Kind.READ, partition=tp, records={tp: list(records)}, offsets_by_partition=ends)


def good(story: Story) -> None:
    """Three acknowledged values, read once while it runs and once at the end."""
    for number in range(3):
        story.send(f"v{number}", number)
    story.assign(0)
    story.poll((0, "v0"), (1, "v1"))
    story.poll((2, "v2"))
    story.end(3)
    story.read((0, "v0"), (1, "v1"), (2, "v2"))


def lost(story: Story) -> None:
    """An acknowledged value gave its place to another one."""
    story.send("v0", 0)
    story.send("v1", 1)
    story.read((0, "v0"), (1, "v2"))


def lost_tail(story: Story) -> None:
    """The log ends before what was acknowledged."""
    story.send("v0", 0)
    story.send("v1", 1)
    story.read((0, "v0"))


def lost_without_final_read(story: Story) -> None:
    """A reader read beyond an acknowledged value, which no reader got."""
    for number in range(3):
        story.send(f"v{number}", number)
    story.poll((0, "v0"))
    story.poll((2, "v2"), process="d")


def vanished(story: Story) -> None:
    """A value without a receipt was read, and is not there at the end."""
    story.send("v0", 0)
    story.send("v1", None, Type.INFO)
    story.poll((0, "v0"), (1, "v1"))
    story.read((0, "v0"))


def duplicate(story: Story) -> None:
    """A value exists twice."""
    story.send("v0", 0)
    story.read((0, "v0"), (1, "v0"))


def unknown_twice(story: Story) -> None:
    """An unknown value exists twice."""
    story.send("v0", None, Type.INFO)
    story.send("v1", 1)
    story.read((0, "v0"), (1, "v1"), (2, "v0"))


def moved(story: Story) -> None:
    """A value is not at the offset of its receipt."""
    story.send("v0", 1)
    story.send("v1", 0, process="r")
    story.read((0, "v0"), (1, "v1"))


def inconsistent(story: Story) -> None:
    """Two consumers read two values at one offset."""
    story.send("v0", None, Type.INFO)
    story.send("v1", 0)
    story.poll((0, "v0"), process="d")
    story.read((0, "v1"))


def aborted(story: Story) -> None:
    """A refused value exists."""
    story.send("v0", None, Type.FAIL)
    story.send("v1", 1)
    story.read((0, "v0"), (1, "v1"))


def phantom(story: Story) -> None:
    """A value exists that no client sent to this partition."""
    story.send("v0", 0)
    story.send("v1", 0, tp="t-1")
    story.read((0, "v0"), (1, "v1"))
    story.read((0, "v1"), tp="t-1")


def early(story: Story) -> None:
    """A value is read before it is sent."""
    story.send("v0", 0)
    story.poll((1, "v1"))
    story.send("v1", 1)
    story.read((0, "v0"), (1, "v1"))


def hole(story: Story) -> None:
    """An offset has no record."""
    story.send("v0", 0)
    story.send("v1", 2)
    story.read((0, "v0"), (2, "v1"), end=3)


def hole_at_end(story: Story) -> None:
    """The end is beyond the last record."""
    story.send("v0", 0)
    story.read((0, "v0"), end=2)


def skip(story: Story) -> None:
    """A consumer leaves out a record between two polls."""
    for number in range(3):
        story.send(f"v{number}", number)
    story.poll((0, "v0"))
    story.poll((2, "v2"))
    story.read((0, "v0"), (1, "v1"), (2, "v2"))


def skip_at_start(story: Story) -> None:
    """A consumer leaves out the first record that it asked for."""
    story.send("v0", 0)
    story.send("v1", 1)
    story.assign(0)
    story.poll((1, "v1"))
    story.read((0, "v0"), (1, "v1"))


def internal_skip(story: Story) -> None:
    """A consumer leaves out a record within a poll."""
    for number in range(3):
        story.send(f"v{number}", number)
    story.poll((0, "v0"), (2, "v2"))
    story.read((0, "v0"), (1, "v1"), (2, "v2"))


def back(story: Story) -> None:
    """A consumer reads a record again."""
    story.send("v0", 0)
    story.send("v1", 1)
    story.poll((0, "v0"), (1, "v1"))
    story.poll((1, "v1"))
    story.read((0, "v0"), (1, "v1"))


def internal_back(story: Story) -> None:
    """A consumer reads backwards within a poll."""
    story.send("v0", 0)
    story.send("v1", 1)
    story.poll((1, "v1"), (0, "v0"))
    story.read((0, "v0"), (1, "v1"))


def reordered(story: Story) -> None:
    """A producer's later value lies before its earlier one."""
    story.send("v0", 1)
    story.send("v1", 0)
    story.read((0, "v1"), (1, "v0"))


def internal_reordered(story: Story) -> None:
    """Two values of one send lie the wrong way around."""
    op = story.begin("s", Kind.SEND, partition=TP, values=["v0", "v1"])
    story.add(op, "s", Type.OK, Kind.SEND, offsets=[1, 0])
    story.read((0, "v1"), (1, "v0"))


def stale_end(story: Story) -> None:
    """Ten seconds after a receipt, an answer about the end still lacks its value."""
    story.send("v0", 0)
    for _ in range(10):
        story.add(story.begin("x", Kind.FAULT), "x", Type.INFO, Kind.FAULT)
    story.end(0)
    story.read((0, "v0"))


@pytest.mark.parametrize(
    ("plant", "names"),
    [
        (lost, {"lost write", "inconsistent offset", "phantom"}),
        (lost_tail, {"unseen"}),
        (lost_without_final_read, {"lost write"}),
        (vanished, {"vanished"}),
        (duplicate, {"duplicate", "hole"}),
        (unknown_twice, {"duplicate", "hole"}),
        (moved, {"duplicate", "inconsistent offset"}),
        (inconsistent, {"inconsistent offset", "vanished"}),
        (aborted, {"aborted read"}),
        (phantom, {"phantom"}),
        (early, {"phantom"}),
        (hole, {"hole"}),
        (hole_at_end, {"hole"}),
        (skip, {"poll skip"}),
        (skip_at_start, {"poll skip"}),
        (internal_skip, {"internal poll skip"}),
        (back, {"nonmonotonic poll"}),
        (internal_back, {"internal nonmonotonic poll"}),
        (reordered, {"nonmonotonic send"}),
        (internal_reordered, {"internal nonmonotonic send", "nonmonotonic send"}),
        (stale_end, {"stale end"}),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_planted_anomaly_is_found(plant: Callable[[Story], None], names: set[str]) -> None:
    """Each kind of anomaly is found under its name, together only with the anomalies that it implies."""
    story = Story()
    plant(story)
    verdict = check(story.events)
    assert verdict.name == "FAILED"
    assert {anomaly.name for anomaly in verdict.anomalies} == names, verdict.lines()


def test_good_history_passes() -> None:
    """A history without faults has no anomaly, and its values are counted."""
    story = Story()
    good(story)
    verdict = check(story.events)
    assert (verdict.name, verdict.anomalies) == ("PASSED", [])
    assert verdict.value_counts == {"acknowledged": 3}
    assert verdict.counts["poll ok"] == 2


@pytest.mark.parametrize("is_there", [True, False])
def test_unknown_outcome_may_be_there_or_not(is_there: bool) -> None:
    """A send without a known outcome, or without any completion, is no anomaly either way."""
    story = Story()
    story.send("v0", 0)
    story.send("v1", None, Type.INFO)
    story.begin("s", Kind.SEND, partition=TP, values=["v2"])
    story.send("w", None, Type.FAIL)
    records = [(0, "v0"), (1, "v1"), (2, "v2")] if is_there else [(0, "v0")]
    story.poll(*records)
    story.read(*records)
    verdict = check(story.events)
    assert verdict.anomalies == []
    assert verdict.value_counts["unknown"] == 2
    assert verdict.value_counts["unknown and there"] == 2 * is_there


def test_unknown_outcome_may_come_late() -> None:
    """A value with an unknown outcome may land behind a later one of its producer: that is counted, and no anomaly."""
    story = Story()
    story.send("v0", None, Type.INFO)
    story.send("v1", 0)
    story.send("v2", 1)
    story.read((0, "v1"), (1, "v2"), (2, "v0"))
    verdict = check(story.events)
    assert (verdict.anomalies, verdict.late_unknown_count) == ([], 1)


def test_failed_poll_and_new_assignment_are_no_skip() -> None:
    """A consumer that starts again may read again or further on. A failed poll moves nothing."""
    story = Story()
    for number in range(4):
        story.send(f"v{number}", number)
    story.poll((0, "v0"), (1, "v1"))
    story.poll(type=Type.INFO)
    story.poll((2, "v2"))
    story.assign(1)
    story.poll((1, "v1"), (2, "v2"))
    story.assign(3)
    story.poll((3, "v3"))
    story.read(*((number, f"v{number}") for number in range(4)))
    assert check(story.events).anomalies == []


def test_fresh_and_failed_answers_about_the_end_are_allowed() -> None:
    """An end may be old for the permitted time, and lacks what is acknowledged after the question."""
    story = Story()
    story.end(0)
    story.send("v0", 0)
    story.end(0)
    story.end(0, type=Type.INFO)
    story.read((0, "v0"))
    assert check(story.events).anomalies == []
    assert {anomaly.name for anomaly in check(story.events, stale_end_s_max=0).anomalies} == {"stale end"}


def test_partition_without_a_final_read_is_undetermined() -> None:
    """What a partition without a final read lost is unknown. Without acknowledgements a history proves nothing."""
    story = Story()
    good(story)
    story.send("x", 0, tp="t-1")
    verdict = check(story.events)
    assert (verdict.name, verdict.unread) == ("UNDETERMINED", ["t-1"])
    assert check([]).name == "UNDETERMINED"


def test_history_comes_back_from_its_file(tmp_path: Path) -> None:
    """A written history is read back, op by op. A torn last line is skipped; any other invalid line is refused."""
    path = tmp_path / "history.jsonl"
    with HistoryFile(path) as history:
        op = history.begin("s", Kind.SEND, partition=TP, values=["v"])
        history.end(op, "s", Type.OK, Kind.SEND, offsets=[0])
        history.note_fault("nothing")
        op = history.begin("f", Kind.READ, partition=TP)
        history.end(op, "f", Type.OK, Kind.READ, partition=TP, records={TP: [(0, "v")]}, offsets_by_partition={TP: 1})
    with path.open("a") as file:
        file.write('{"op":')
    events = list(read_history(path))
    assert [(event.op, event.type) for event in events] == [
        (0, Type.INVOKE),
        (0, Type.OK),
        (1, Type.INFO),
        (2, Type.INVOKE),
        (2, Type.OK),
    ]
    assert [event.time_ns for event in events] == sorted(event.time_ns for event in events)
    assert check(events).name == "PASSED"
    done = subprocess.run(
        [sys.executable, "-m", "integration_tests.harness.history.check", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "PASSED")
    with pytest.raises(ValueError, match="no line of a history"):
        parse_line('{"op": 1}')


def steps_of_check(record_count: int) -> int:
    """Return the lines of Python that the checker runs for a history of that many records, half of which have no receipt."""
    story = Story()
    for number in range(record_count):
        story.send(f"v{number}", number if number % 2 else None, Type.OK if number % 2 else Type.INFO)
        story.poll((number, f"v{number}"))
        story.end(number + 1)
    story.read(*((number, f"v{number}") for number in range(record_count)))
    lines = 0

    def count(frame: FrameType, what: str, argument: object) -> Any:
        nonlocal lines
        lines += what == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        verdict = check(story.events)
    finally:
        sys.settrace(before)
    assert verdict.name == "PASSED"
    return lines


def test_work_of_the_checker_grows_like_the_history() -> None:
    """A history that is eight times as long takes eight times the steps."""
    assert steps_of_check(1_600) < 8.5 * steps_of_check(200)
