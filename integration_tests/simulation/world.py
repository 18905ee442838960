# SPDX-License-Identifier: Apache-2.0
"""One run of one seed: voters, brokers, clients, a network and faults; then a healed world, and the comparison of everything.

Owns the phases. Does not know what a server or a client does.

Phases: first come faults, while clients work and the oracle checks every event. Then everything is healed and must converge within
`CONVERGE_MS_MAX`, and every partition is read whole. Under flush policy `ack` all machines then lose power, and everything is read
again. At the end the history of the clients is judged, and the replicas of each partition are compared byte for byte.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import traceback
import warnings
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from lograft.aio import Admin
from lograft.errors import LograftError
from lograft.types import ElectionType, TopicPartition

from brokerd.coordinator.internal_topics import INGESTS
from brokerd.replica.replica import Replica
from integration_tests.harness.history.checker import Verdict, check
from integration_tests.simulation.carrier_laws import CarrierLaws
from integration_tests.simulation.clients import (
    TOPIC,
    EndClient,
    FinalReader,
    History,
    Operator,
    ReadingClient,
    SendingClient,
)
from integration_tests.simulation.faults import LOSSES, Faults
from integration_tests.simulation.forger import AnswerForger, Forger
from integration_tests.simulation.group_clients import CommittedReader, MemberClient
from integration_tests.simulation.group_laws import GroupLaws
from integration_tests.simulation.ingest_clients import FedReader, FinalFedReader, IngestClient, IngestOperator
from integration_tests.simulation.ingest_laws import BRIEF, FED, IngestLaws
from integration_tests.simulation.logged_faults import LoggedFaults
from integration_tests.simulation.options import WorldOptions, draw_options, rack_name, snapshot_settings
from integration_tests.simulation.oracle import READ_BYTES, Oracle
from integration_tests.simulation.process import SimProcess
from integration_tests.simulation.registers import Register, RegisterClient, read_at_last
from integration_tests.simulation.servers import (
    BROKER_PORT,
    STEPS_TO_PAUSE_MAX,
    VOTER_PORT,
    BrokerMachine,
    Machine,
    VoterMachine,
    replica_key,
)
from integration_tests.simulation.transform_clients import TransformClient
from integration_tests.simulation.virtual_network import Network
from integration_tests.simulation.virtual_platform import platform
from integration_tests.simulation.virtual_rocksdb import Databases
from metaquorum.metadata.topic_configs import FlushPolicy
from metaquorum.metadata.topic_names import staged_topic_id
from metaquorum.raft.voters import Voter, voter_set
from metaquorum.testing.invariants import InvariantViolation, require
from metaquorum.testing.scheduler import Scheduler
from storage.testing.sim_disk import Crash

FIRST_BROKER_ID = 101
CONVERGE_MS_MAX = 120_000
"""Virtual milliseconds within which a healed world must have all replicas in sync, and be read whole."""
RESTART_MS_MAX = 3_000
"""Maximum milliseconds after which a server that ended is started again."""
MEMBER_PAUSE_MS_MAX = 10_000
"""Maximum milliseconds for which the process of a member is stopped: longer than a session."""
COLLECTIONS_MAX = 20
"""Maximum rounds of garbage collection for a world that is over."""
HISTORY_LINES = 40
"""Number of lines in the report of a failure."""

_Client = Callable[[SimProcess], Coroutine[Any, Any, None]]
"""Returns the main task of a client."""


class World:
    """One run.

    Args:
        seed: seed of the run.
        options: what may happen; None: drawn from the seed.
    """

    def __init__(self, seed: int, options: WorldOptions | None = None) -> None:
        self.scheduler = Scheduler(seed)
        self.options = options or draw_options(self.scheduler.rng("options"))
        self.counts: Counter[str] = Counter()
        self.history = History()
        self.ingest_laws = IngestLaws(self.counts, has_damage=self.options.damage_every_ms is not None)
        self.laws = GroupLaws(self.scheduler, self.counts, self.ingest_laws)
        self.oracle = Oracle(self.scheduler, self.counts, self.laws, self.ingest_laws)
        self.ingest_laws.look = self._look_at_ingests
        self.network = Network(self.scheduler, self.scheduler.rng("network"), delay_ms_max=self.options.delay_ms_max)
        self.clock_drift = self.options.clock_drift
        self.work_ms_max = self.options.work_ms_max
        self.flush_ms_max = self.options.flush_ms_max
        self.databases = Databases(self.scheduler.rng("databases"), on_refusal=self._count_refusal)
        self.snapshots = snapshot_settings(self.options)
        self.register = Register()
        self.is_topic_there = False
        self.is_fed_there = False
        self.orders_id = self.fed_id = b""
        self.is_healed = False
        self.lost_voter: VoterMachine | None = None
        self.verdict: Verdict | None = None
        self._faults_seen: list[str] = []
        self._log: deque[str] = deque(maxlen=HISTORY_LINES)
        self._rng = self.scheduler.rng("world")
        self._clients: list[tuple[SimProcess, _Client]] = []
        self._ended_clients: list[SimProcess] = []
        self._lasting_clients: set[SimProcess] = set()
        self._member_processes: list[SimProcess] = []
        self.group_ids = [f"group-{number}" for number in range(self.options.group_count)]
        self.finished_groups: set[str] = set()
        self._client_count = 0
        self.voters, self.brokers = self._build()
        self.bootstrap = [f"{broker.name}:{BROKER_PORT}" for broker in self.brokers]
        self._faults = Faults(self)

    def _build(self) -> tuple[list[VoterMachine], list[BrokerMachine]]:
        options = self.options
        keys = [replica_key(number) for number in range(1, options.voter_count + 1)]
        voters = voter_set([Voter(key=key, address=f"voter-{key.node_id}:{VOTER_PORT}") for key in keys])
        quorum = tuple(voter.address for voter in voters.voters)
        broker_ids = range(FIRST_BROKER_ID, FIRST_BROKER_ID + options.broker_count)
        return (
            [VoterMachine(self, f"voter-{key.node_id}", key=key, voters=voters) for key in keys],
            [
                BrokerMachine(
                    self,
                    f"broker-{each}",
                    key=replica_key(each),
                    voters=voter_set([]),
                    quorum=quorum,
                    rack=rack_name(number) if options.has_racks else "",
                    has_two_disks=options.directory_every_ms is not None,
                )
                for number, each in enumerate(broker_ids, start=1)
            ],
        )

    @property
    def machines(self) -> list[Machine]:
        """All servers."""
        return [*self.voters, *self.brokers]

    def run(self, event_count: int) -> None:
        """Run with faults for `event_count` events, then heal, read everything, and judge.

        Raises:
            InvariantViolation: a law was broken, the history has an anomaly, the healed world did not converge, or a server found
                itself in an impossible state. Its notes have a report.
        """
        with _no_collector():
            failure = self._attempt(event_count)
            self.counts["dead connection found by a ping"] += self.network.dead_count
            self._throw_away()
        if failure is not None:
            raise failure

    def _attempt(self, event_count: int) -> InvariantViolation | None:
        """Run and return the violation, if any, with a report. It has no frames, because they would keep all processes alive."""
        try:
            with (
                platform(
                    self.scheduler,
                    self.network,
                    self.databases,
                    self.snapshots,
                    coordinator_count=self.options.coordinator_count,
                    ingest_coordinator_count=self.options.ingest_coordinator_count,
                    broker_count=self.options.broker_count,
                    large_part_bytes=self.options.large_part_bytes,
                ),
                self.oracle.watching(),
                self.laws.watching(),
                self.ingest_laws.watching(),
                CarrierLaws(self.on_fault).watching(),
                LoggedFaults(self.on_fault).listening(),
            ):
                self._run(event_count)
            self._judge()
        except Exception as error:
            # Real server code runs in here, so every exception that it raises is a fault too.
            text = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
            failure = InvariantViolation(text)
            failure.add_note(self.describe())
            if not isinstance(error, InvariantViolation):
                failure.add_note(traceback.format_exc())
            return failure
        return None

    def _run(self, event_count: int) -> None:
        for machine in self.machines:
            self.scheduler.after(self._rng.randint(0, 500), machine.start)
        self._start_clients()
        self._faults.schedule()
        self._run_until(lambda: self.scheduler.event_count >= event_count)
        self._heal()
        self._converge()
        self._read_all("first")
        if self.options.flush_policy is FlushPolicy.ACK:
            self._lose_all_power()
            self._converge()
            self._read_all("second")
        if self.options.ingest_count:
            # The last reads were made while an ingest was open.
            self._converge()
            self.ingest_laws.check_all()
        self._compare()
        if self._faults_seen:
            raise InvariantViolation(f"a fault that no code caught: {self._faults_seen}")

    def _throw_away(self) -> None:
        """Release all processes, which never end by themselves."""
        processes = [process for process, _ in self._clients]
        processes += [machine.process for machine in self.machines if machine.process is not None]
        for process in processes:
            process.loop.kill()
        self._clients.clear()
        self._ended_clients.clear()
        self._lasting_clients.clear()
        self._member_processes.clear()
        self.laws.throw_away()
        self.ingest_laws.throw_away()
        for machine in self.machines:
            machine.throw_away()
        self.scheduler.clear()
        self.network.clear()
        self.oracle.throw_away()

    # Events of machines and faults.

    def on_fault(self, message: str) -> None:
        """Note a fault of a server (see `Surroundings`)."""
        self._faults_seen.append(message)
        self.note(f"FAULT {message}")

    def on_end(self, machine: Machine) -> None:
        """Start a server that ended by itself again, a little later."""
        self.scheduler.after(self._rng.randint(1, RESTART_MS_MAX), machine.start)

    def note(self, line: str) -> None:
        """Keep a line for the report."""
        self._log.append(f"{self.scheduler.now_ms} {line}")

    # Clients.

    def _start_clients(self) -> None:
        options = self.options
        broker_ids = [broker.key.node_id for broker in self.brokers]
        operator = self._start_client(lambda process: Operator(self, process, broker_ids).run())
        self._lasting_clients.add(operator)
        for _ in range(options.sender_count):
            self._start_client(lambda process: SendingClient(self, process).run())
        for _ in range(options.reader_count):
            self._start_client(lambda process: ReadingClient(self, process).run())

        if (end_every_ms := options.end_every_ms) is not None:
            self._start_client(lambda process: EndClient(self, process, every_ms=end_every_ms).run())
        if (forge_every_ms := options.forge_every_ms) is not None:
            self._start_client(lambda process: Forger(self, process, every_ms=forge_every_ms).run())
            self.network.change_answer = AnswerForger(self, every_ms=forge_every_ms).change
        for group in self.group_ids:
            for number in range(options.member_count):
                self._start_member(group, f"{group}-static-{number}" if self._rng.random() < 0.3 else None)
        if options.ingest_count:
            feeder = self._start_client(lambda process: IngestOperator(self, process, broker_ids).run())
            self._lasting_clients.add(feeder)
            self._start_client(lambda process: FedReader(self, process).run())
            for _ in range(options.ingest_count):
                self._start_client(lambda process: IngestClient(self, process).run())
            for number in range(options.transform_count):
                self._start_transform(number)
        if options.register_every_ms is not None:
            for is_writer in (True, False):
                self._start_register_client(is_writer=is_writer)

    def _start_member(self, group: str, instance_id: str | None) -> None:
        def run(process: SimProcess) -> Coroutine[Any, Any, None]:
            self._member_processes.append(process)
            return MemberClient(self, process, group=group, instance_id=instance_id).run()

        self._start_client(run)

    def _start_transform(self, number: int) -> None:
        def run(process: SimProcess) -> Coroutine[Any, Any, None]:
            self._member_processes.append(process)
            return TransformClient(self, process, number=number).run()

        self._start_client(run)

    def elect_uncleanly(self, partitions: Sequence[TopicPartition]) -> None:
        """See `StruckWorld`."""

        async def elect() -> None:
            try:
                async with Admin(self.bootstrap) as admin:
                    await admin.elect_leaders(partitions, election=ElectionType.UNCLEAN)
            except LograftError as error:
                self.counts[f"unclean election: {error.code.name}"] += 1

        self._lasting_clients.add(self._start_client(lambda process: elect()))

    def strike_member(self) -> None:
        """See `StruckWorld`."""
        members = [each for each in self._clients if each[0] in self._member_processes]
        if not members:
            return
        process, make = self._rng.choice(members)
        kind = self._rng.choice(("kill", "pause", "reset"))
        if kind == "kill":
            self._replace_client(process, make)
            self.counts["group member killed"] += 1
        elif kind == "reset":
            for connection in list(self.network.connections()):
                if connection.client is process:
                    connection.break_off()
            self.counts["connections of a group member reset"] += 1
        elif not process.loop.is_paused:
            steps = self._rng.choice((0, self._rng.randint(1, STEPS_TO_PAUSE_MAX)))
            until_ms = self.scheduler.now_ms + self._rng.randint(1, MEMBER_PAUSE_MS_MAX)
            process.loop.pause(until_ms, after_steps=steps)
            self.counts["group member paused"] += 1

    def _start_register_client(self, *, is_writer: bool) -> None:
        # This client is never killed, because the outcome of a killed writer's write would be unknown.
        process = self._start_client(lambda process: RegisterClient(self, process, is_writer=is_writer).run())
        self._lasting_clients.add(process)

    def _start_client(self, make: _Client, *, is_kept: bool = True) -> SimProcess:
        self._client_count += 1
        process = SimProcess(
            self.scheduler,
            machine="client",
            number=self._client_count,
            disk=None,
            rng=self.scheduler.rng(f"process/client/{self._client_count}"),
            work_ms_max=2,
            flush_ms_max=0,
            on_fault=self.on_fault,
        )
        process.run(make(process), lambda error: self._on_client_end(process, error))
        if is_kept:
            self._clients.append((process, make))
        return process

    def _on_client_end(self, process: SimProcess, error: BaseException | None) -> None:
        if error is not None:
            self.on_fault(f"{process.name} ended: {error!r}")
        self._clients = [each for each in self._clients if each[0] is not process]
        self._kill_client(process)

    def _kill_client(self, process: SimProcess) -> None:
        process.loop.kill()
        self.network.end_process(process)
        self._ended_clients.append(process)

    def is_spare(self, machine: BrokerMachine) -> bool:
        """Return True if the world can lose a broker's data (see `StruckWorld`)."""
        self._forget_deleted()
        is_quiet = self.network.is_whole and not any(each.is_paused for each in self.machines)
        return is_quiet and self._are_serving and self.oracle.is_spare(machine.key.node_id, in_sync_min=2)

    @property
    def _are_serving(self) -> bool:
        return all(broker.is_serving and not broker.is_stopping for broker in self.brokers)

    @property
    def is_whole(self) -> bool:
        """True if all brokers serve and all replicas are in sync (see `StruckWorld`)."""
        self._forget_deleted()
        return self._are_serving and self.oracle.are_all_in_sync

    def _look_at_ingests(self) -> None:
        """Let the oracle look at everything of ingests, the decisions first."""
        if self.options.damage_every_ms is not None:
            # A look would report damage, which only a process can. Followers show here what leaders do not tell.
            return
        by_topic = [replica for replicas in self.replicas().values() for _, replica in replicas]
        for topic in (INGESTS.name, FED, BRIEF):
            for replica in by_topic:
                if replica.topic == topic:
                    self.oracle.look(replica)

    def _forget_deleted(self) -> None:
        """Tell the oracle which topics brokers know as deleted."""
        if self.options.ingest_count:
            for broker in self.brokers:
                if broker.server is not None:
                    self.oracle.forget(broker.server.observer.image.deleted_topics.ids())

    def restart_client(self) -> None:
        """Kill a producer or a consumer, and start another one of its kind."""
        mortal = [each for each in self._clients if each[0] not in self._lasting_clients]
        if mortal:
            process, make = self._rng.choice(mortal)
            self._replace_client(process, make)
            self.counts["client killed"] += 1

    def _replace_client(self, process: SimProcess, make: _Client) -> None:
        self._clients.remove((process, make))
        self._kill_client(process)
        self._start_client(make)

    # The end.

    def _run_until(self, is_done: Callable[[], bool]) -> None:
        while not is_done():
            if self.oracle.violation is not None:
                raise self.oracle.violation
            if self.laws.violation is not None:
                raise self.laws.violation
            if self.ingest_laws.violation is not None:
                raise self.ingest_laws.violation
            if self._faults_seen:
                raise InvariantViolation(f"a fault that no code caught: {self._faults_seen}")
            if not self.scheduler.run_next():
                raise InvariantViolation("nothing is left to do")

    def _count_refusal(self) -> None:
        self.counts["image found no room"] += 1

    def _heal(self) -> None:
        self.is_healed = True
        self.network.heal()
        for broker in self.brokers:
            broker.make_room()
            broker.mend_second(Crash.LOSE_ALL)
        for machine in self.machines:
            if machine.process is not None:
                machine.process.loop.resume()
            machine.start()
        for process in self._member_processes:
            if process.is_alive:
                process.loop.resume()

    def _converge(self) -> None:
        deadline_ms = self.scheduler.now_ms + CONVERGE_MS_MAX
        looked_ms = -1

        def is_done() -> bool:
            nonlocal looked_ms
            if self.scheduler.now_ms == looked_ms:
                return False
            looked_ms = self.scheduler.now_ms
            for machine in self.machines:
                machine.start()
            if looked_ms > deadline_ms:
                raise InvariantViolation(f"the healed world did not come right: {self.describe()}")
            if looked_ms % 50:
                return False
            self._look_at_groups()
            return self._has_converged()

        self._run_until(is_done)

    def _look_at_groups(self) -> None:
        """Let the members of a group end when it has been stable, and has processed and committed everything."""
        if len(self.finished_groups) == len(self.group_ids) or not self._are_replicas_whole():
            return
        self.laws.heal()
        ends = {
            key: replicas[0][1].log.log_end_offset
            for key, replicas in self.replicas().items()
            if replicas[0][1].topic == TOPIC
        }
        are_alone = all(process in self._member_processes for process, _ in self._clients if process.is_alive)
        for group in self.group_ids:
            if group in self.finished_groups:
                continue
            is_stable = self.laws.look(group, sorted(ends))
            if is_stable and are_alone and self._have_all_ended(ends) and self.laws.is_done(group, ends):
                self.laws.release(group)
                self.finished_groups.add(group)

    def _have_all_ended(self, ends: Mapping[tuple[bytes, int], int]) -> bool:
        """Return True if everything in the topic is committed."""
        found = self.replicas()
        return all(replica.high_watermark == end for key, end in ends.items() for _, replica in found[key])

    def _has_converged(self) -> bool:
        if any(process.is_alive for process, _ in self._clients) or not self._are_replicas_whole():
            return False
        if not self.ingest_laws.is_over:
            return False
        for replicas in self.replicas().values():
            end_offset = replicas[0][1].log.log_end_offset
            is_staging = staged_topic_id(replicas[0][1].topic) is not None
            if is_staging and any(replica.log_start_offset < end_offset for _, replica in replicas):
                return False
            if not all(replica.high_watermark == replica.log.log_end_offset == end_offset for _, replica in replicas):
                return False
        return True

    def _are_replicas_whole(self) -> bool:
        """Return True if all replicas of all partitions are there and in sync, each partition has a leader, and nothing is damaged."""
        if not self.is_topic_there or self._faults.is_disk_away:
            return False
        hosts = [broker.server.replica_manager if broker.server is not None else None for broker in self.brokers]
        if any(host is None for host in hosts):
            return False
        by_partition = self.replicas()
        orders = [key for key, replicas in by_partition.items() if replicas[0][1].topic == TOPIC]
        if len(orders) < self.options.partition_count:
            return False
        for key, replicas in by_partition.items():
            leaders = [replica for _, replica in replicas if replica.is_leader]
            count = self.options.replication_factor if key in orders else self.oracle.replica_count(key)
            if len(replicas) != count or len(leaders) != 1:
                return False
            if count > 1 and len(leaders[0].in_sync) < len(replicas):
                return False
            if any(replica.log.damaged for _, replica in replicas):
                return False
        return True

    def replicas(self) -> dict[tuple[bytes, int], list[tuple[str, Replica]]]:
        """Return the open replicas of each partition, with the names of their brokers."""
        found: dict[tuple[bytes, int], list[tuple[str, Replica]]] = {}
        for broker in self.brokers:
            host = None if broker.server is None else broker.server.replica_manager
            for replica in () if host is None else host.replicas():
                found.setdefault((replica.topic_id, replica.partition), []).append((broker.name, replica))
        return found

    def _read_all(self, name: str) -> None:
        async def read(process: SimProcess) -> None:
            await FinalReader(self, process).run()
            await FinalFedReader(self, process).run()
            await CommittedReader(self).run()
            await read_at_last(self)

        process = self._start_client(read, is_kept=False)
        deadline_ms = self.scheduler.now_ms + CONVERGE_MS_MAX

        def is_done() -> bool:
            if self.scheduler.now_ms > deadline_ms:
                raise InvariantViolation(f"the {name} final read did not end: {self.describe()}")
            return not process.is_alive

        self._run_until(is_done)

    def _lose_all_power(self) -> None:
        """Let all machines lose power, with everything that is not on the device."""
        for machine in self.machines:
            machine.lose_power(self._rng.choice(LOSSES))
        for machine in self.machines:
            self.scheduler.after(self._rng.randint(0, 2_000), machine.start)
        self.counts["power lost everywhere at the end"] += 1

    def _compare(self) -> None:
        """Compare replicas byte for byte, from the highest log start to the high watermark."""
        for key, replicas in self.replicas().items():
            start_offset = max(replica.log.log_start_offset for _, replica in replicas)
            if replicas[0][1].is_compacted:
                known = self.oracle.live_records(key)
                for name, replica in replicas:
                    found = self.oracle.live_records_of(replica)
                    law = "healed replicas of a compacted log have every key"
                    require(all(found.get(each) == value for each, value in known.items()), law, (key, name))
                    # A replica that was away for longer than `delete.retention.ms` has missed tombstones.
                    self.counts["deleted key that a late replica keeps"] += len(found.keys() - known.keys())
                continue
            contents = [(name, _content(replica, start_offset)) for name, replica in replicas]
            for name, content in contents[1:]:
                require(content == contents[0][1], "healed replicas are equal", (key, name, contents[0][0]))
            end_offset = replicas[0][1].high_watermark
            require(end_offset >= self.oracle.committed_end(key), "what was committed is there", (key, end_offset))

    def _judge(self) -> None:
        self.verdict = verdict = check(self.history.events)
        if verdict.name != "PASSED" and (verdict.anomalies or verdict.unread):
            raise InvariantViolation("the clients saw what must not be:\n" + "\n".join(verdict.lines()))

    def describe(self) -> str:
        """Return the state of all machines, for a report."""
        lines = [f"seed {self.scheduler.seed}, {self.scheduler.now_ms} ms, {self.options}"]
        for machine in self.machines:
            state = "down" if not machine.is_up else "paused" if machine.is_paused else "up"
            lines.append(f"  {machine.name} {state}")
        for (_, partition), replicas in sorted(self.replicas().items()):
            for name, replica in replicas:
                log = replica.log
                lines.append(
                    f"  {replica.topic}-{partition} on {name}: leader={replica.is_leader} epoch={replica.leader_epoch}"
                    f" {log.log_start_offset}..{log.log_end_offset} flushed={log.flushed_offset}"
                    f" hw={replica.high_watermark} in_sync={replica.in_sync}"
                )
        lines += self.laws.lines()
        lines += self.ingest_laws.lines()
        lines += [f"  clients: {[process.name for process, _ in self._clients]}", *self._log]
        return "\n".join(lines)


@contextmanager
def _no_collector() -> Generator[None]:
    """Turn the garbage collector off for a run: at a random moment, finalizers of a killed process would run code.

    Afterwards everything is collected, and the complaints of finalizers are discarded.
    """
    gc.collect()
    gc.disable()
    hook = sys.unraisablehook
    try:
        yield
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sys.unraisablehook = lambda _: None
            # A finalizer that gathers tasks would otherwise create a real loop, which never runs and keeps everything alive.
            asyncio.set_event_loop(None)
            try:
                # An object that awaits in its finalizer survives one more collection.
                for _ in range(COLLECTIONS_MAX):
                    if gc.collect() == 0:
                        break
            finally:
                sys.unraisablehook = hook
                gc.enable()


def _content(replica: Replica, start_offset: int) -> bytes:
    data, offset = b"", start_offset
    while offset < replica.high_watermark:
        found = replica.log.read(offset, READ_BYTES, end_offset=replica.high_watermark)
        data += bytes(found.data)
        offset = found.next_offset
    return data
