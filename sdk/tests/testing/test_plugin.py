# SPDX-License-Identifier: Apache-2.0
"""The pytest plugin in runs of pytest of its own: its fixtures, runs that do not use it, and what a run leaves behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import tomllib
import uuid
from pathlib import Path

import psutil
import pytest

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[3]
RUN_TIMEOUT_S = 180.0
END_TIMEOUT_S = 30.0
TOKEN = "TESTING_RUN_TOKEN"

USES_EMBEDDED = """
from lograft import Admin, Consumer, Producer, TopicPartition

def test_record_comes_back(lograft_address, lograft_topic):
    with Producer(lograft_address) as producer:
        producer.send(lograft_topic, b"one")
    with Consumer(lograft_address) as consumer:
        consumer.assign([TopicPartition(lograft_topic, 0)])
        values = []
        while not values:
            values = [record.value for record in consumer.poll()]
    assert values == [b"one"]
    assert lograft_topic.startswith("test_record_comes_back-")

def test_topics_of_other_tests_are_gone(lograft_address, lograft_make_topic):
    first, second = lograft_make_topic(partition_count=3), lograft_make_topic(configs={"cleanup.policy": "compact"})
    with Admin(lograft_address) as admin:
        assert sorted(each.topic for each in admin.list_topics()) == sorted([first, second])
        assert admin.describe_topic(first).partition_count == 3
        assert admin.describe_topic(second).configs["cleanup.policy"] == "compact"
        admin.delete_topic(second)

def test_servers_are_not_rewritten(lograft_cluster):
    import brokerd.process.server
    assert "@pytest_ar" not in vars(brokerd.process.server)
    assert any(hasattr(each, "mark_rewrite") for each in __import__("sys").meta_path)
"""


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A folder for a run of pytest."""
    return Run(pytester, monkeypatch)


class Run:
    """Runs of pytest with the plugin in a folder of their own, whose temporary files and processes can be told apart."""

    def __init__(self, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pytester = pytester
        self.temporary = pytester.path / "temporary"
        self.temporary.mkdir()
        self._token = uuid.uuid4().hex
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "sdk")]))
        monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        monkeypatch.setenv("TMPDIR", str(self.temporary))
        monkeypatch.setenv(TOKEN, self._token)
        # The run of this test has imported lograft.
        monkeypatch.delenv("GRPC_ENABLE_FORK_SUPPORT", raising=False)

    @property
    def command(self) -> list[str]:
        """The command of a run. The plugin is named, because a checkout may have no entry points."""
        return [sys.executable, "-m", "pytest", "-p", "pytest_lograft", "-p", "no:cacheprovider", "-q", "-s"]

    def file(self, text: str) -> None:
        """Write the test file."""
        self.pytester.makepyfile(test_it=text)

    def finish(self) -> subprocess.CompletedProcess[str]:
        """Run to the end."""
        return subprocess.run(
            self.command, cwd=self.pytester.path, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False
        )

    def begin(self) -> subprocess.Popen[str]:
        """Start a run and return it as soon as a test of it has printed `ready`."""
        started = subprocess.Popen(
            self.command, cwd=self.pytester.path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert started.stdout is not None
        for line in started.stdout:
            if "ready" in line:
                return started
        raise AssertionError("the run ended before its test was ready")

    def processes(self) -> list[psutil.Process]:
        """Return the processes of runs in this folder."""
        found: list[psutil.Process] = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(TOKEN) == self._token and process.pid != os.getpid():
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def left(self) -> list[str]:
        """Return what runs have left: processes that do not end, and temporary files of Lograft."""
        _, alive = psutil.wait_procs(self.processes(), timeout=END_TIMEOUT_S)
        return [str(each) for each in alive] + [each.name for each in self.temporary.glob("lograft*")]


def test_fixtures_give_a_cluster_and_topics(run: Run) -> None:
    """Address, topics and cluster; a test's topics are gone in the next one; the servers' code is as written."""
    run.file(USES_EMBEDDED)
    done = run.finish()
    assert "3 passed" in done.stdout, done.stdout + done.stderr
    assert run.left() == []


def test_run_that_does_not_use_it_is_not_disturbed(run: Run) -> None:
    """Nothing of Lograft or gRPC is imported, no variable is set, no thread runs. It has fixtures alone: no hook, no option."""
    run.file(
        """
        import os, sys, threading
        def test_nothing_is_loaded():
            names = {name.split(".")[0] for name in sys.modules}
            assert not names & {"lograft", "brokerd", "metaquorum", "storage", "grpc", "numpy", "google"}
            assert "GRPC_ENABLE_FORK_SUPPORT" not in os.environ
            assert threading.enumerate() == [threading.main_thread()]
        """
    )
    done = run.finish()
    assert "1 passed" in done.stdout, done.stdout + done.stderr
    import pytest_lograft

    assert not [name for name in vars(pytest_lograft) if name.startswith("pytest_")]


def test_distribution_registers_the_plugin() -> None:
    """`lograft-server` has the entry point and the module; `lograft` has neither, and has `lograft.testing`."""
    server = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert server["project"]["entry-points"]["pytest11"] == {"pytest_lograft": "pytest_lograft"}
    assert "sdk/pytest_lograft" in server["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    client = tomllib.loads((ROOT / "sdk" / "pyproject.toml").read_text())
    assert "entry-points" not in client["project"]
    assert client["tool"]["hatch"]["build"]["targets"]["wheel"]["exclude"] == ["lograft/internal"]


def test_missing_servers_say_what_to_install(run: Run) -> None:
    """With the SDK alone, `lograft.testing` can be imported, and its clusters say what to install."""
    program = (
        "from importlib.machinery import PathFinder\n"
        "find = PathFinder.find_spec\n"
        "PathFinder.find_spec = lambda name, *rest: None if name == 'brokerd' else find(name, *rest)\n"
        "from lograft.testing import EmbeddedCluster, ProcessCluster, ServersMissingError\n"
        "for kind in (EmbeddedCluster, ProcessCluster):\n"
        "    try: kind()\n"
        "    except ServersMissingError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (
        done.stdout.splitlines()
        == ["lograft.testing runs real servers, which are not installed: pip install lograft-server"] * 2
    ), done.stderr


def test_two_workers_do_not_know_each_other(run: Run) -> None:
    """Runs at the same time, as the workers of pytest-xdist are: each has its own cluster, and all pass."""
    run.file(USES_EMBEDDED)
    started = [
        subprocess.Popen(
            run.command, cwd=run.pytester.path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for _ in range(2)
    ]
    for each in started:
        output, _ = each.communicate(timeout=RUN_TIMEOUT_S)
        assert "3 passed" in output, output
    assert run.left() == []


def test_faults_are_healed_after_each_test(run: Run) -> None:
    """A test that leaves a node dead does not disturb the next one, even when it fails. Nothing is left."""
    run.file(
        """
        from lograft import Admin
        def test_first(lograft_three_nodes):
            lograft_three_nodes.kill(2)
            assert False, "as planned"
        def test_second(lograft_three_nodes):
            assert sorted(lograft_three_nodes.process_ids()) == [1, 2, 3]
            with Admin(lograft_three_nodes.bootstrap) as admin:
                assert not any(each.fenced for each in admin.describe_cluster().brokers)
        """
    )
    done = run.finish()
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert run.left() == []


BOTH = """
import sys, threading
def test_waits(lograft_cluster, lograft_three_nodes):
    lograft_three_nodes.pause(1)
    print("ready", flush=True)
    threading.Event().wait()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_ended_run_leaves_no_process(run: Run, number: signal.Signals) -> None:
    """After Ctrl-C nothing is left. A run that is killed leaves no process, and of its directories only the embedded cluster's."""
    run.file(BOTH)
    started = run.begin()
    assert len(run.processes()) >= 5, "the run, its keeper and three nodes"
    started.send_signal(number)
    started.communicate(timeout=RUN_TIMEOUT_S)
    left = run.left()
    if number is not signal.SIGINT:
        left = [each for each in left if not each.startswith("lograft-embedded-")]
    assert left == []


def test_threads_end_with_the_fixtures(run: Run) -> None:
    """When the last test has ended, no thread of Lograft runs, also after a failed test."""
    run.pytester.makeconftest(
        """
        import threading
        def pytest_sessionfinish():
            print("threads:", sorted(each.name for each in threading.enumerate() if "lograft" in each.name.lower()))
        """
    )
    run.file(
        """
        def test_fails(lograft_cluster, lograft_topic):
            assert False
        """
    )
    done = run.finish()
    assert "threads: []" in done.stdout, done.stdout + done.stderr
    assert run.left() == []


def test_embedded_cluster_needs_no_plugin() -> None:
    """`lograft.testing` works without pytest's import hook, and names its public classes."""
    from lograft import testing

    assert sorted(testing.__all__) == dir(testing) == sorted(testing._HOMES)
    assert all(getattr(testing, name) is not None for name in testing.__all__)
    with pytest.raises(AttributeError, match="no attribute"):
        _ = testing.nothing
    before = set(threading.enumerate())
    with testing.EmbeddedCluster() as cluster:
        assert cluster.bootstrap.startswith("127.0.0.1:")
    assert not [each for each in threading.enumerate() if each not in before and each.name.startswith("lograft")]
