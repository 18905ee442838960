# SPDX-License-Identifier: Apache-2.0
"""Apache Kafka and Spark's connector for it, as peers of the benchmarks: Maven fetches them, and servers run on loopback.

Nothing of Kafka is a dependency of the project. The first run fetches the jars with `mvn`, from the repositories that Maven is
set up for, into `~/.cache/lograft-bench` (`LOGRAFT_BENCH_CACHE` chooses another place). The settings of a server are those of
the distribution's `config/server.properties` and `kafka-run-class.sh`, except where a comment says why not.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from integration_tests.harness.wait import wait_for
from metaquorum.testing.ports import LOOPBACK, free_port

KAFKA_VERSION = "4.3.1"
LOG4J_VERSION = "2.25.4"
SCALA_VERSION = "2.13"
CONNECTOR_VERSION = "4.2.0"
"""The connector for a Spark whose own version Maven does not have. It runs with Spark 4.3."""
FETCH_TIMEOUT_S = 1_800.0
START_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 60.0
HEAP = ("-Xms1g", "-Xmx1g")
"""As in Kafka's own `kafka-server-start.sh`."""
JVM = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-XX:MaxInlineLevel=15",
    "-Djava.awt.headless=true",
)
CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qk"
CONNECTOR_ARTIFACTS = (
    "spark-sql-kafka-0-10_2.13",
    "spark-token-provider-kafka-0-10_2.13",
    "kafka-clients",
    "commons-pool2",
)
"""What the connector needs beside the jars that PySpark has."""
_LOGGING = """\
status = error
appender.console.type = Console
appender.console.name = STDERR
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = [%d] %p %m (%c)%n
rootLogger.level = WARN
rootLogger.appenderRef.stderr.ref = STDERR
"""
_POM = """\
<?xml version="1.0" encoding="UTF-8"?>
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>lograft.bench</groupId>
  <artifactId>jars</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
{dependencies}
  </dependencies>
</project>
"""


def kafka_jars() -> Path:
    """Return a directory with the jars of a Kafka server, fetched once."""
    wanted = [
        ("org.apache.kafka", f"kafka_{SCALA_VERSION}", KAFKA_VERSION),
        ("org.apache.logging.log4j", "log4j-slf4j-impl", LOG4J_VERSION),
    ]
    return _fetched(f"kafka-{KAFKA_VERSION}", wanted, ())


def connector_jars(spark_version: str) -> tuple[str, list[Path]]:
    """Return version and jars of Spark's Kafka connector, fetched once, without those that PySpark has itself.

    The version is that of Spark, or `CONNECTOR_VERSION` where Maven does not have that one.
    """
    home = bench_cache()
    for version in (spark_version, CONNECTOR_VERSION):
        name = f"spark-kafka-{version}"
        if (
            version == spark_version
            and not (home / name).exists()
            and (home / f"spark-kafka-{CONNECTOR_VERSION}").exists()
        ):
            continue
        try:
            found = _fetched(
                name, [("org.apache.spark", f"spark-sql-kafka-0-10_{SCALA_VERSION}", version)], CONNECTOR_ARTIFACTS
            )
        except subprocess.CalledProcessError:
            if version == CONNECTOR_VERSION:
                raise
            print(f"Maven does not have the connector of Spark {version}; {CONNECTOR_VERSION} takes its place")
            continue
        return version, sorted(found.glob("*.jar"))
    raise AssertionError("the loop ends with a result or an error")


def bench_cache() -> Path:
    """Return the directory of what the benchmarks fetch."""
    return Path(os.environ.get("LOGRAFT_BENCH_CACHE") or Path.home() / ".cache" / "lograft-bench")


def _fetched(name: str, wanted: Sequence[tuple[str, str, str]], only: Sequence[str]) -> Path:
    home = bench_cache()
    directory = home / name
    if directory.exists():
        return directory
    dependencies = "\n".join(
        f"    <dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version></dependency>"
        for group, artifact, version in wanted
    )
    building = home / f"{name}.part"
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    (building / "pom.xml").write_text(_POM.format(dependencies=dependencies))
    command = ["mvn", "--batch-mode", "--no-transfer-progress", "--quiet", "dependency:copy-dependencies"]
    command += ["-DincludeScope=runtime", "-DoutputDirectory=."]
    if only:
        command.append(f"-DincludeArtifactIds={','.join(only)}")
    print(f"fetching {name} with Maven", flush=True)
    subprocess.run(command, cwd=building, check=True, timeout=FETCH_TIMEOUT_S)
    building.rename(directory)
    return directory


class KafkaServers:
    """One Kafka server, or three, each voter and broker in one JVM.

    Args:
        directory: directory for data and logs.
        java: the program `java`.
        count: number of servers, 1 or 3.
    """

    def __init__(self, directory: Path, java: Path, *, count: int = 1) -> None:
        self._directory, self._java, self._count = directory, java, count
        self._jars = kafka_jars()
        self._ports = [free_port() for _ in range(count)]
        self._controller_ports = [free_port() for _ in range(count)]
        self._processes: list[subprocess.Popen[bytes]] = []
        directory.mkdir(parents=True)
        (directory / "log4j2.properties").write_text(_LOGGING)

    @property
    def bootstrap(self) -> str:
        """Bootstrap addresses for clients."""
        return ",".join(f"{LOOPBACK}:{port}" for port in self._ports)

    @property
    def pids(self) -> list[int]:
        """Process ids of the servers."""
        return [process.pid for process in self._processes]

    def start(self) -> None:
        """Format the directories, start the servers, and wait until they listen.

        Raises:
            TimeoutError: a server does not listen in time.
            RuntimeError: a server has ended.
        """
        for number in range(self._count):
            file = self._directory / f"{number}.properties"
            file.write_text("\n".join(self._settings(number)) + "\n")
            self._run("-Xmx256m", "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(file))
        for number in range(self._count):
            log = (self._directory / f"{number}.log").open("wb")
            command = self._command(*HEAP, *JVM, "kafka.Kafka", str(self._directory / f"{number}.properties"))
            self._processes.append(subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True))
            log.close()
        wait_for(self._do_listen, timeout_s=START_TIMEOUT_S, what="Kafka to listen")

    def stop(self) -> None:
        """Stop the servers, and kill those that do not stop."""
        self.resume()
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def pause(self) -> None:
        """Stop the servers for a while (SIGSTOP)."""
        for process in self._processes:
            process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let them go on."""
        for process in self._processes:
            process.send_signal(signal.SIGCONT)

    def _do_listen(self) -> bool:
        for number, process in enumerate(self._processes):
            if process.poll() is not None:
                tail = (self._directory / f"{number}.log").read_text()[-2_000:]
                raise RuntimeError(f"Kafka ended with {process.returncode}:\n{tail}")
        return all(map(_listens, self._ports))

    def _command(self, *arguments: str) -> list[str]:
        logging = f"-Dlog4j2.configurationFile={self._directory / 'log4j2.properties'}"
        first_class = next(index for index, each in enumerate(arguments) if not each.startswith("-"))
        options, program = arguments[:first_class], arguments[first_class:]
        return [str(self._java), *options, logging, "-cp", f"{self._jars}/*", *program]

    def _run(self, *arguments: str) -> None:
        subprocess.run(self._command(*arguments), check=True, stdout=subprocess.DEVNULL, timeout=START_TIMEOUT_S)

    def _settings(self, number: int) -> Iterator[str]:
        voters = ",".join(f"{each + 1}@{LOOPBACK}:{port}" for each, port in enumerate(self._controller_ports))
        yield "process.roles=broker,controller"
        yield f"node.id={number + 1}"
        yield f"controller.quorum.voters={voters}"
        client, controller = self._ports[number], self._controller_ports[number]
        yield f"listeners=PLAINTEXT://{LOOPBACK}:{client},CONTROLLER://{LOOPBACK}:{controller}"
        yield f"advertised.listeners=PLAINTEXT://{LOOPBACK}:{client}"
        yield "controller.listener.names=CONTROLLER"
        yield "inter.broker.listener.name=PLAINTEXT"
        yield "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT"
        yield f"log.dirs={self._directory / f'data-{number}'}"
        yield "num.network.threads=3"
        yield "num.io.threads=8"
        yield "socket.send.buffer.bytes=102400"
        yield "socket.receive.buffer.bytes=102400"
        yield "socket.request.max.bytes=104857600"
        yield "log.segment.bytes=1073741824"
        for topic in ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic"):
            yield f"{topic}.replication.factor={self._count}"
        yield "share.coordinator.state.topic.min.isr=1"
        yield "transaction.state.log.min.isr=1"
        # The benchmark stops the servers that it does not measure, and makes and deletes topics itself.
        yield "broker.session.timeout.ms=600000"
        yield "log.segment.delete.delay.ms=200"
        yield "auto.create.topics.enable=false"


def _listens(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((LOOPBACK, port)) == 0


@contextmanager
def kafka_servers(directory: Path, java: Path, *, count: int = 1) -> Iterator[KafkaServers]:
    """Run Kafka on fresh directories."""
    servers = KafkaServers(directory, java, count=count)
    try:
        servers.start()
        yield servers
    finally:
        servers.stop()
