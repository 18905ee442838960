# SPDX-License-Identifier: Apache-2.0
"""`lograft produce` and `lograft consume` against a real broker: formats, ranges, groups, closed pipes, the progress bar."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from lograft import Consumer, Producer, TopicPartition

MakeTopic = Callable[..., str]
LIMIT_S = 300.0
"""Seconds for one program. Nothing here is timed, and the machine may be busy."""

COMMAND = (sys.executable, "-c", "from lograft.cli import main; main()")


@pytest.fixture
def lograft(bootstrap: str) -> Callable[..., subprocess.CompletedProcess[bytes]]:
    """Run `lograft` in a process of its own."""

    def run(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        environment = {**os.environ, "LOGRAFT_BOOTSTRAP": bootstrap, "COLUMNS": "200"}
        return subprocess.run(
            [*COMMAND, *arguments], input=stdin, capture_output=True, timeout=LIMIT_S, env=environment, check=False
        )

    return run


Lograft = Callable[..., "subprocess.CompletedProcess[bytes]"]


def test_what_a_format_writes_goes_into_another_topic(lograft: Lograft, make_topic: MakeTopic) -> None:
    """`consume -f F | produce -f F`, with key, time, headers and a tombstone; `json` carries all bytes."""
    first, second, third = make_topic(), make_topic(), make_topic()
    sent = lograft("produce", first, "-f", r"%k\t%T\t%h\t%s\n", stdin=b"a\t1000\tx=1,y=2\tone\nb\t2000\t\ttwo\n")
    assert (sent.returncode, sent.stdout) == (0, f"2 records to {first}: partition 0 offsets 0 to 1\n".encode())
    assert lograft("produce", first, "-k", "a", "--tombstone", "-t", "3000").returncode == 0
    text = r"%k|%T|%h|%s\n"
    copied = lograft("consume", first, "-f", text, "--null-value", "NULL")
    assert copied.stdout == b"a|1000|x=1,y=2|one\nb|2000||two\na|3000||NULL\n"
    assert lograft("produce", second, "-f", text, "--null-value", "NULL", stdin=copied.stdout).returncode == 0
    assert lograft("consume", second, "-f", text, "--null-value", "NULL").stdout == copied.stdout
    lines = lograft("consume", first, "-f", "json")
    assert lograft("produce", third, "-f", "json", stdin=lines.stdout).returncode == 0
    again = lograft("consume", third, "--json").stdout.replace(third.encode(), first.encode())
    assert again == lines.stdout
    assert lograft("consume", first, "-f", r"%t %p %o %K %S %%\n", "-n", "1").stdout == f"{first} 0 0 1 3 %\n".encode()


def test_whole_transactions_are_printed(lograft: Lograft, bootstrap: str, make_topic: MakeTopic) -> None:
    """`--isolation` is that of the consumer."""
    topic = make_topic(2)
    with Producer(bootstrap) as producer, producer.transaction(f"printed-{topic}") as transaction:
        for number in range(2):
            transaction.send(topic, b"%d" % number, partition=number)
    done = lograft("consume", topic, "--isolation", "committed-together")
    assert (done.returncode, sorted(done.stdout.splitlines())) == (0, [b"0", b"1"])
    wrong = lograft("consume", topic, "--isolation", "serializable")
    assert wrong.returncode != 0
    assert b'isolation is "committed" or "committed-together", not \'serializable\'' in wrong.stderr


def test_a_line_that_does_not_fit_the_format_is_named(lograft: Lograft, make_topic: MakeTopic) -> None:
    """With the number of records that were stored."""
    done = lograft("produce", make_topic(), "-f", "%k:%s", stdin=b"a:1\nb\n")
    assert done.returncode == 1
    assert b"line 2: no ':' after %k; 1 record was stored" in done.stderr


def test_tail_and_times_choose_a_range(lograft: Lograft, make_topic: MakeTopic, bootstrap: str) -> None:
    """`--tail` counts in each partition; `--since` is inclusive, `--until` exclusive, and both know how long ago."""
    topic = make_topic(2)
    now_ms = int(time.time() * 1000)
    with Producer(bootstrap) as producer:
        for number in range(6):
            producer.send(topic, b"%d" % number, partition=number % 2, timestamp_ms=now_ms - 3_600_000 * (6 - number))
    assert sorted(lograft("consume", topic, "--tail", "1").stdout.split()) == [b"4", b"5"]
    assert lograft("consume", topic, "--tail", "0").stdout == b""
    assert sorted(lograft("consume", topic, "--tail", "99").stdout.split()) == [b"%d" % each for each in range(6)]
    middle = ("--since", str(now_ms - 5 * 3_600_000), "--until", str(now_ms - 2 * 3_600_000))
    assert sorted(lograft("consume", topic, *middle).stdout.split()) == [b"1", b"2", b"3"]
    assert sorted(lograft("consume", topic, "--since", "150m").stdout.split()) == [b"4", b"5"]
    assert sorted(lograft("consume", topic, "--until", "5h").stdout.split()) == [b"0", b"1"]
    assert lograft("consume", topic, "--since", "now").stdout == b""


@pytest.mark.parametrize(
    "arguments",
    [
        ["--tail", "1", "--offset", "1"],
        ["--until", "1h", "--follow"],
        ["--group", "g", "--tail", "1"],
        ["--group", "g", "--partition", "0"],
        ["--since", "1w"],
        ["-f", "%q"],
    ],
    ids=" ".join,
)
def test_options_that_contradict_each_other_are_refused(
    arguments: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    """Before any broker is asked."""
    from lograft.cli import main

    with pytest.raises(SystemExit) as end:
        main(["consume", "t", "-b", "127.0.0.1:1", *arguments])
    assert end.value.code == 2
    assert capfd.readouterr().err


def test_a_group_goes_on_where_it_was(lograft: Lograft, make_topic: MakeTopic, bootstrap: str) -> None:
    """What was printed is committed, also with --max."""
    topic = make_topic()
    lograft("produce", topic, stdin=b"".join(b"%d\n" % number for number in range(10)))
    group = f"group-of-{topic}"
    assert lograft("consume", topic, "-g", group, "-n", "3").stdout == b"0\n1\n2\n"
    with Consumer(bootstrap, group=group) as consumer:
        committed = consumer.committed(TopicPartition(topic, 0))
        assert committed is not None
        assert committed.offset == 3
    assert lograft("consume", topic, "-g", group).stdout.split() == [b"%d" % number for number in range(3, 10)]
    done = lograft("consume", topic, "-g", group)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"0 records\n")


@pytest.mark.parametrize("options", [[], ["--json"], ["--group", "piped"]], ids=str)
def test_a_closed_pipe_is_a_good_end(bootstrap: str, make_topic: MakeTopic, options: list[str]) -> None:
    """`lograft consume | head` says nothing and ends with 0."""
    topic = make_topic()
    with Producer(bootstrap) as producer:
        producer.send_many(topic, [b"x" * 100] * 50_000)
    with subprocess.Popen(
        [*COMMAND, "consume", topic, "-b", bootstrap, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert b"x" in process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(LIMIT_S) == 0


def test_a_terminal_gets_a_bar_with_rates_and_a_file_does_not(bootstrap: str, make_topic: MakeTopic) -> None:
    """The bar is on standard error, and only where the records are not."""
    topic = make_topic()
    with Producer(bootstrap) as producer:
        producer.send_many(topic, [b"x" * 100] * 1_000)
    for is_terminal in (True, False):
        ours, theirs = pty.openpty()
        stderr = theirs if is_terminal else subprocess.PIPE
        with subprocess.Popen(
            [*COMMAND, "consume", topic, "-b", bootstrap], stdout=subprocess.PIPE, stderr=stderr
        ) as process:
            os.close(theirs)
            assert process.stdout is not None
            assert len(process.stdout.read().split()) == 1_000
            said = _read_all(ours) if is_terminal else process.stderr.read() if process.stderr is not None else b""
        os.close(ours)
        assert (b"records/s" in said) is is_terminal
        assert b"1000 records" in said


def _read_all(descriptor: int) -> bytes:
    found = b""
    while True:
        try:
            piece = os.read(descriptor, 65_536)
        except OSError:  # the other side is closed
            return found
        if not piece:
            return found
        found += piece
