# SPDX-License-Identifier: Apache-2.0
"""The command `lograft`, against a real broker: what it prints, and its exit codes."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from lograft import Admin, Producer
from lograft.cli import main
from tests.client.processes import unused_address
from tests.client.reading import read_all

MakeTopic = Callable[..., str]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(bootstrap: str, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command line in this process and return (exit code, output, error output)."""
    monkeypatch.setenv("LOGRAFT_BOOTSTRAP", bootstrap)
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments: str, stdin: bytes = b"") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as end:
            main(arguments)
        sys.stdout.flush()
        out, err = capfdbinary.readouterr()
        assert isinstance(end.value.code, int)
        return end.value.code, out.decode(errors="replace"), err.decode(errors="replace")

    return call


def test_topics_are_created_listed_described_and_deleted(run: Run) -> None:
    """The life of a topic, as tables and as JSON."""
    code, out, _ = run("topics", "create", "cli-topic", "--partitions", "2", "--config", "flush.policy=none")
    assert (code, out) == (0, "topic cli-topic has 2 partitions\n")
    code, out, err = run("topics", "create", "cli-topic")
    assert (code, out) == (1, "")
    assert "lograft: error:" in err
    assert run("topics", "create", "cli-topic", "--if-not-exists")[0] == 0
    code, out, _ = run("topics", "list")
    assert code == 0
    assert "cli-topic" in out
    code, out, _ = run("topics", "list", "--json")
    assert [topic["partition_count"] for topic in json.loads(out) if topic["topic"] == "cli-topic"] == [2]
    code, out, _ = run("topics", "describe", "cli-topic")
    assert code == 0
    assert "flush.policy" in out
    code, out, _ = run("topics", "describe", "cli-topic", "--json")
    described = json.loads(out)
    assert described["configs"]["flush.policy"] == "none"
    assert described["overridden"] == ["flush.policy"]
    assert run("topics", "delete", "cli-topic", stdin=b"n\n")[0] == 1
    assert run("topics", "delete", "cli-topic", "--yes")[:2] == (0, "topic cli-topic is deleted\n")
    assert run("topics", "describe", "cli-topic")[0] == 1


def test_topics_of_a_file_are_created(run: Run, tmp_path: Path) -> None:
    """Each line is a name or an object. Refused topics are reported, and a bad line is found before any topic is created."""
    file = tmp_path / "topics.jsonl"
    lines = [
        "# mine",
        "",
        "file-a",
        '{"topic": "file-b", "partitions": 4, "configs": {"retention.ms": 1000}}',
        "file c",
    ]
    file.write_text("\n".join(lines))
    code, out, err = run("topics", "create", "--file", str(file), "-p", "2", "-c", "flush.policy=none")
    assert (code, out) == (1, "2 topics created\n")
    assert "file c: INVALID_TOPIC_NAME" in err
    described = json.loads(run("topics", "describe", "file-b", "--json")[1])
    assert len(described["partitions"]) == 4
    assert (described["configs"]["retention.ms"], described["configs"]["flush.policy"]) == ("1000", "none")
    assert len(json.loads(run("topics", "describe", "file-a", "--json")[1])["partitions"]) == 2
    code, out, _ = run("topics", "create", "--file", "-", "--if-not-exists", stdin=b"file-a\nfile-d\n")
    assert (code, out) == (0, "1 topic created, 1 existed\n")
    code, out, _ = run("topics", "create", "--file", "-", "--json", stdin=b"file-a\nfile-e\n")
    assert (code, [each["error"] and each["error"]["code"] for each in json.loads(out)]) == (
        1,
        ["TOPIC_ALREADY_EXISTS", None],
    )


@pytest.mark.parametrize(
    "line", ["{", '{"partitions": 3}', '{"topic": "x", "partition": 3}', '{"topic": "x", "partitions": "3"}', "ok"]
)
def test_bad_line_of_a_file_of_topics_is_named(run: Run, line: str) -> None:
    """A bad line creates no topic."""
    code, _, err = run("topics", "create", "--file", "-", stdin=f"ok\n{line}\n".encode())
    assert code == 2
    assert "line 2" in err
    assert run("topics", "describe", "ok")[0] == 1


def test_create_wants_a_topic_or_a_file(run: Run) -> None:
    """Giving neither a topic nor a file, or both, is wrong usage."""
    assert run("topics", "create")[0] == 2
    assert run("topics", "create", "x", "--file", "-")[0] == 2
    code, _, err = run("topics", "create", "--file", "no-such-file")
    assert code == 2
    assert "no-such-file is no file" in err


def test_values_and_lines_are_produced_and_consumed(
    run: Run, bootstrap: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """A single value, standard input with keys, and a file come out of consume again, as text and as JSON."""
    topic = make_topic()
    code, out, _ = run("produce", topic, "--value", "one", "--key", "k", "--header", "h=v", "--timestamp", "1970-01-01")
    assert (code, out) == (0, f"1 record to {topic}: partition 0 offset 0\n")
    code, out, _ = run(
        "produce", topic, "--key-separator", ":", "--allow-missing-key", "--json", stdin=b"a:two\r\nthree\n"
    )
    assert json.loads(out) == {
        "topic": topic,
        "records": 2,
        "partitions": [{"partition": 0, "first_offset": 1, "end_offset": 3, "records": 2}],
        "problems": [],
    }
    lines = tmp_path / "lines"
    lines.write_bytes(b"four\n\xff\n")
    assert run("produce", topic, "--file", str(lines))[0] == 0
    code, out, err = run("consume", topic, "--from-beginning", "--max", "4")
    assert (code, out) == (0, "one\ntwo\nthree\nfour\n")
    assert "4 records" in err
    code, out, _ = run("consume", topic, "--json", "--partition", "0")
    records = [json.loads(line) for line in out.splitlines()]
    assert [record["offset"] for record in records] == [0, 1, 2, 3, 4]
    assert (records[0]["key"], records[0]["value"], records[0]["timestamp_ms"]) == ("k", "one", 0)
    assert records[0]["headers"] == [{"name": "h", "value": "v"}]
    assert (records[1]["key"], records[2]["key"]) == ("a", None)
    assert records[4]["value_base64"] == "/w=="
    code, out, _ = run("consume", topic, "--offset", "3", "--verbose", "--max", "1", "--rack", "a")
    assert out.startswith("0:3\t")
    assert out.endswith("Z\t-\tfour\n")
    assert run("consume", topic, "--timestamp", "2020-01-01T00:00:00+01:00", "--max", "1")[1] == "two\n"
    assert run("consume", topic, "--timestamp", "0", "--follow", "--max", "5")[0] == 0
    assert len(read_all(bootstrap, topic)) == 5


def test_doctor_finds_nothing_wrong_with_a_healthy_cluster(run: Run, make_topic: MakeTopic) -> None:
    """The exit status is 0, and the last line says how many topics were looked at."""
    make_topic()
    code, out, _ = run("doctor")
    assert (code, "nothing is wrong: " in out.splitlines()[-1]) == (0, True)
    assert json.loads(run("doctor", "--json")[1]) == []


def test_offset_that_is_not_there_is_refused_with_the_valid_range(run: Run, make_topic: MakeTopic) -> None:
    """Such a command once printed nothing and succeeded. The end of the log itself is a valid start."""
    topic = make_topic()
    assert run("produce", topic, stdin=b"a\nb\n")[0] == 0
    code, out, err = run("consume", topic, "-o", "99999")
    assert (code, out) == (2, "")
    assert "has no offset 99999: its records go from 0 to 2 (exclusive)" in " ".join(err.split())
    assert run("consume", topic, "-o", "2")[:2] == (0, "")


def test_counts_below_one_are_refused(run: Run) -> None:
    """Such counts once meant the default."""
    for option in ("-p", "-r"):
        code, _, err = run("topics", "create", "nothing", option, "0")
        assert code == 2
        assert "greater than or equal to 1" in " ".join(err.replace("│", "").split())


def test_separator_may_be_escaped_and_a_line_without_it_stops_or_is_left_out(run: Run, make_topic: MakeTopic) -> None:
    """The error names the line and the number of stored records. Later lines are sent only with --on-error."""
    topic = make_topic()
    lines = b"k\tone\nbad\nk\ttwo\n"
    code, out, err = run("produce", topic, "--file", "-", "--key-separator", r"\t", stdin=lines)
    assert (code, out.split()[0]) == (1, "1")
    text = " ".join(err.split())
    assert "line 2: no separator" in text
    assert "1 record was stored" in text
    code, out, err = run("produce", topic, "--key-separator", r"\x09", "--on-error", "continue", "--json", stdin=lines)
    assert code == 1
    assert json.loads(out)["records"] == 2
    assert json.loads(out)["problems"][0].startswith("line 2: ")
    assert run("consume", topic)[1] == "one\none\ntwo\n"
    code, _, err = run("produce", topic, "--key-separator", r"\q", stdin=lines)
    assert code == 2
    assert "stands for nothing" in err


def test_record_that_the_broker_refuses_is_told_with_what_is_stored(run: Run, make_topic: MakeTopic) -> None:
    """The client does not know the limit of the topic. The records around the refused one are stored."""
    topic = make_topic(configs={"max.message.bytes": "1024"})
    code, out, err = run("produce", topic, "--on-error", "continue", stdin=b"a\n" + b"x" * 5_000 + b"\nb\n")
    assert code == 1
    assert "not delivered" in err
    assert f"{out.split()[0]} record" in " ".join(err.split())


def test_null_values_are_sent_and_shown(run: Run, make_topic: MakeTopic) -> None:
    """A tombstone is neither an empty value nor its marker."""
    topic = make_topic()
    assert run("produce", topic, "--key-separator", ":", "--null-value", "NULL", stdin=b"k:v\nk:NULL\nk:\n")[0] == 0
    assert run("consume", topic)[1] == "v\n(null)\n\n"
    assert run("consume", topic, "--null-value", "gone")[1] == "v\ngone\n\n"
    values = [json.loads(line)["value"] for line in run("consume", topic, "--json")[1].splitlines()]
    assert values == ["v", None, ""]


def test_unknown_partitions_are_shown_and_deleted_after_a_question(run: Run, bootstrap: str) -> None:
    """`directories list` counts stray partitions. `delete-unknown` asks before it deletes, and reports the result."""
    with Admin(bootstrap) as admin:
        (directory,) = admin.describe_log_directories().directories
    stranger = Path(directory.path) / "partitions" / f"{'ab' * 16}-3.{time.time_ns() // 1_000_000}.unknown"
    stranger.mkdir()
    (stranger / "00000000000000000000.log").write_bytes(bytes(1_000))
    code, out, _ = run("directories", "list", "--json")
    assert code == 0
    (shown,) = json.loads(out)["directories"]
    assert (shown["unknown_partition_count"], shown["unknown_partition_bytes"]) == (1, 1_000)
    assert run("directories", "delete-unknown", stdin=b"n\n")[0] == 1
    assert stranger.exists()
    code, out, _ = run("directories", "delete-unknown", "--yes")
    assert (code, out) == (0, "1 partition directory with 1000 bytes deleted\n")
    assert not stranger.exists()
    code, out, _ = run("directories", "delete-unknown")
    assert (code, out) == (0, "0 partition directories with 0 bytes deleted\n")


def test_quorum_status_shows_leader_voters_and_brokers(run: Run) -> None:
    """The status shows one voter, which leads, and one broker."""
    code, out, _ = run("quorum", "status")
    assert code == 0
    assert "leader" in out
    assert "active" in out
    code, out, _ = run("quorum", "status", "--json")
    status = json.loads(out)
    assert status["leader_id"] == status["voters"][0]["node_id"]
    # A young log is complete, and no snapshot replaces its beginning yet.
    assert (status["log_start_offset"], status["latest_snapshot"]) == (0, None)
    assert [broker["fenced"] for broker in status["brokers"]] == [False]


def test_quorum_describe_shows_lag_and_directories_and_changes_are_refused(run: Run) -> None:
    """Voters and observers have directory and lag. A refusal by the quorum ends with 1 and the reason."""
    code, out, _ = run("quorum", "describe", "--json")
    assert code == 0
    (voter,) = json.loads(out)["voters"]
    assert voter["lag"] == 0
    code, out, _ = run("quorum", "describe")
    assert code == 0
    assert voter["directory_id"] in out.replace("\n", "")
    number = str(voter["node_id"])
    for arguments, reason in (
        (["remove-voter", number], "LAST_VOTER"),
        (["remove-voter", number, "--directory", "00" * 16], "VOTER_NOT_FOUND"),
        (["add-voter", "9"], "NOT_CAUGHT_UP"),
        (["replace-voter", number], "does not fetch"),
        (["transfer-leader"], "NO_SUCCESSOR"),
    ):
        code, out, err = run("quorum", *arguments)
        assert (code, out) == (1, "")
        assert reason in err
    code, out, _ = run("quorum", "transfer-leader", number)
    assert (code, out) == (0, f"node {number} leads the metadata quorum\n")
    assert json.loads(run("quorum", "transfer-leader", number, "--json")[1]) == {"leader_id": voter["node_id"]}


@pytest.mark.parametrize(
    "arguments",
    [
        ["no-such-command"],
        ["topics", "create"],
        ["quorum", "add-voter"],
        ["quorum", "add-voter", "1", "--directory", "xyz"],
        ["quorum", "remove-voter", "1", "--directory", "00"],
        ["topics", "create", "t", "--partitions", "many"],
        ["topics", "create", "t", "--config", "novalue"],
        ["topics", "list", "--bootstrap", "nonsense:port"],
        ["produce", "t", "--value", "v", "--acks", "3"],
        ["produce", "t", "--value", "v", "--codec", "gzip"],
        ["produce", "t", "--value", "v", "--file", __file__],
        ["produce", "t", "--key-separator", ""],
        ["produce", "t", "--value", "v", "--key-separator", ":"],
        ["produce", "t", "--value", "v", "--timeout-ms", "4"],
        ["produce", "t", "--file", "/no/such/file"],
        ["consume", "t", "--offset", "1", "--from-beginning"],
        ["consume", "t", "--timestamp", "yesterday"],
        ["--log-level", "LOUD", "topics", "list"],
    ],
    ids=" ".join,
)
def test_wrong_usage_ends_with_2_and_says_why(run: Run, arguments: list[str]) -> None:
    """Wrong usage is reported on standard error and has its own exit code."""
    code, out, err = run(*arguments)
    assert code == 2
    assert err
    assert out == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ["topics", "list", "--timeout-ms", "300"],
        ["produce", "t", "--value", "v", "--timeout-ms", "300"],
        ["consume", "t", "--timeout-ms", "300"],
        ["quorum", "status", "--timeout-ms", "300"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_nobody_there_ends_with_1_and_names_the_address(run: Run, arguments: list[str]) -> None:
    """Without a broker, every command fails with one line that says so."""
    address = unused_address()
    code, out, err = run(*arguments, "--bootstrap", address)
    assert (code, out) == (1, "")
    assert address in err
    assert "is it running?" in err


def test_failed_records_end_with_1(run: Run, make_topic: MakeTopic) -> None:
    """When a record is not delivered, produce fails and prints the error."""
    topic = make_topic(configs={"max.message.bytes": "2048"})
    code, _, err = run("produce", topic, "--value", "x" * 5_000)
    assert code == 1
    assert "max.message.bytes" in err
    assert run("produce", "no-such-topic", "--value", "v")[0] == 1


def test_the_installed_command_works_and_the_library_needs_neither_typer_nor_rich(
    bootstrap: str, make_topic: MakeTopic
) -> None:
    """The console script runs; `import lograft` and its clients load no typer and no rich."""
    topic = make_topic()
    command = [sys.executable, "-c", "from lograft.cli import main; main()"]
    produced = subprocess.run(
        [*command, "produce", topic, "-b", bootstrap], input=b"a\nb\n", capture_output=True, timeout=60, check=True
    )
    assert b"2 records" in produced.stdout
    version = subprocess.run([*command, "--version"], capture_output=True, timeout=60, check=True)
    assert version.stdout.startswith(b"lograft ")
    check = (
        "import sys, lograft; lograft.Producer, lograft.Consumer, lograft.Admin, lograft.aio.Producer; "
        "sys.exit(bool({'typer', 'rich', 'click', 'pyarrow', 'pyspark'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", check], timeout=60, check=True)
    lean = "import sys, lograft, lograft.wire.batch; sys.exit('grpc' in sys.modules or 'asyncio' in sys.modules)"
    subprocess.run([sys.executable, "-c", lean], timeout=60, check=True)


def test_plugins_bring_commands_and_broken_ones_harm_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command of another distribution works. One that cannot be loaded says so and does not disturb the others."""
    points = [
        EntryPoint(name="hello", value="tests.cli.plugin:hello", group="lograft.commands"),
        EntryPoint(name="group", value="tests.cli.plugin:group", group="lograft.commands"),
        EntryPoint(name="broken", value="tests.cli.no_such_module:command", group="lograft.commands"),
    ]
    monkeypatch.setattr("lograft.cli.app.entry_points", lambda group: points)
    assert run("hello", "--name", "you")[:2] == (0, "hello you\n")
    assert run("group", "hello")[:2] == (0, "hello world\n")
    code, _, err = run("broken")
    assert code == 1
    assert "cannot be loaded" in err
    for words in (["dev"], ["dev", "--port", "0"], ["log"], ["log", "verify", "/data"]):
        code, _, err = run(*words)
        assert code == 1
        assert "lograft-server" in err


def test_follow_waits_for_new_records_until_it_is_interrupted(bootstrap: str, make_topic: MakeTopic) -> None:
    """`consume --follow` prints new records, and Ctrl-C is its normal end."""
    topic = make_topic()
    # A test run in the background may inherit an ignored SIGINT. The command gets Python's own handler back.
    handler = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    command = [sys.executable, "-c", f"{handler}; from lograft.cli import main; main()"]
    with subprocess.Popen(
        [*command, "consume", topic, "--follow", "--from-beginning", "-b", bootstrap], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        for number in range(3):
            with Producer(bootstrap) as producer:
                producer.send(topic, b"%d" % number)
            assert process.stdout.readline() == b"%d\n" % number
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
