# SPDX-License-Identifier: Apache-2.0
"""First start: gives a directory its identity once, explicitly (`format_...`) or by asking the peers (`FirstStart`).

Owns the files of formatting, written in this order: initial voters, vote file, `meta.json`. The last one makes the directory
formatted; after a crash before it, formatting starts again. A node that asks its peers draws its directory id once and keeps it in
`<data>/first-start.json` until then, so a crash does not change its identity. `first_start_decision` decides.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from lograft.internal.v1 import quorum_pb2 as pb

from metaquorum.net.peers import Peers
from metaquorum.raft.messages import Request
from metaquorum.raft.types import NodeId, ReplicaKey
from metaquorum.raft.voters import Voter, VoterSet, voter_set
from metaquorum.replica.checked_json import decode_checked, encode_checked
from metaquorum.replica.driver import Answer, StoppedError
from metaquorum.replica.election_store import ElectionStore
from metaquorum.replica.first_start_decision import (
    FormatObserver,
    FormatVoter,
    ProbeAnswer,
    Refuse,
    Wait,
    decide_first_start,
)
from metaquorum.replica.quorum_transport import PeerFailureError, QuorumTransport
from storage.directory.data_directory import DataDirectory
from storage.errors import FileMissingError
from storage.files.checkpoints import remove_if_exists, replace_file
from storage.files.disk import Disk
from storage.files.made_directory import make_data_directory
from storage.files.names import META_FILE, METADATA_DIRECTORY
from storage.files.posix import PosixDisk

logger = logging.getLogger(__name__)

DIRECTORY_ID_BYTES = 16
VOTERS_FILE = "initial-voters.json"
PENDING_FILE = "first-start.json"
PROBE_TIMEOUT_MS = 1_000
PROBE_PAUSE_MS = 250
"""Milliseconds between two rounds of questions."""

_CLUSTER_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)


class FirstStartRefusedError(Exception):
    """Formatting would mix clusters or nodes; the text names the wrong setting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialVoter:
    """One initial voter: node id, `host:port` of its quorum listener, and id of its metadata directory (16 bytes)."""

    node_id: int
    address: str
    directory_id: bytes


def is_formatted(data_directory: Path) -> bool:
    """Return whether the directory has an identity (`meta.json`)."""
    return (data_directory / META_FILE).exists()


def format_standalone(
    data_directory: Path, *, node_id: int, cluster_id: str, address: str, directory_id: bytes | None = None
) -> None:
    """Format as the only voter of a new cluster.

    Raises:
        FirstStartRefusedError: the cluster id is invalid.
        storage.errors.DataDirectoryError: formatted already, or not writable.
    """
    key = ReplicaKey(node_id=NodeId(node_id), directory_id=directory_id or _draw_directory_id())
    _format(data_directory, key, cluster_id, voter_set([Voter(key=key, address=address)]))


def format_with_voters(
    data_directory: Path,
    *,
    node_id: int,
    cluster_id: str,
    voters: Sequence[InitialVoter],
    directory_id: bytes | None = None,
) -> None:
    """Format as one of several initial voters. Every one of them must be formatted with the same voters.

    Args:
        data_directory: the directory.
        node_id: this node, which must be among the voters.
        cluster_id: the new cluster.
        voters: all initial voters.
        directory_id: if given, it must be the one that `voters` has for this node.

    Raises:
        FirstStartRefusedError: the voters contradict each other or lack this node, or the cluster id is invalid.
        storage.errors.DataDirectoryError: formatted already, or not writable.
    """
    by_id = {voter.node_id: voter for voter in voters}
    if len(by_id) != len(voters):
        raise FirstStartRefusedError("a node id is there twice among the initial voters")
    wrong = [voter.node_id for voter in voters if len(voter.directory_id) != DIRECTORY_ID_BYTES]
    if wrong:
        raise FirstStartRefusedError(f"directory ids of nodes {wrong} do not have {DIRECTORY_ID_BYTES} bytes")
    own = by_id.get(node_id)
    if own is None:
        raise FirstStartRefusedError(f"node {node_id} is not among the initial voters {sorted(by_id)}")
    if directory_id is not None and directory_id != own.directory_id:
        raise FirstStartRefusedError(
            f"directory id {directory_id.hex()} of node {node_id} differs from {own.directory_id.hex()} in the voters"
        )
    members = [
        Voter(key=ReplicaKey(node_id=NodeId(v.node_id), directory_id=v.directory_id), address=v.address) for v in voters
    ]
    key = ReplicaKey(node_id=NodeId(node_id), directory_id=own.directory_id)
    _format(data_directory, key, cluster_id, voter_set(members))


def format_observer(data_directory: Path, *, node_id: int, cluster_id: str, directory_id: bytes | None = None) -> None:
    """Format as an observer: a broker, or a node that replaces a wiped voter.

    Raises:
        FirstStartRefusedError: the cluster id is invalid.
        storage.errors.DataDirectoryError: formatted already, or not writable.
    """
    key = ReplicaKey(node_id=NodeId(node_id), directory_id=directory_id or _draw_directory_id())
    _format(data_directory, key, cluster_id, voter_set([]))


def _draw_directory_id() -> bytes:
    return secrets.token_bytes(DIRECTORY_ID_BYTES)


def _format(data_directory: Path, key: ReplicaKey, cluster_id: str, voters: VoterSet) -> None:
    if not _CLUSTER_ID.fullmatch(cluster_id):
        raise FirstStartRefusedError(
            f"cluster id {cluster_id!r}: use 1 to 64 letters, digits, '.', '_' or '-', a letter or digit first"
        )
    disk = PosixDisk()
    root = _make_root(data_directory)
    metadata = f"{root}/{METADATA_DIRECTORY}"
    if not is_formatted(data_directory):
        disk.make_directory(metadata)
        disk.sync_directory(root)
        write_initial_voters(disk, metadata, voters)
        ElectionStore(disk, metadata, key).create()
    created = DataDirectory.create(
        disk, root, cluster_id=cluster_id, node_id=key.node_id, directory_id=key.directory_id
    )
    created.close()
    remove_if_exists(disk, f"{root}/{PENDING_FILE}")
    logger.info(
        "event=formatted path=%s node=%d directory_id=%s voters=%s",
        root,
        key.node_id,
        key.directory_id.hex(),
        [voter.key.node_id for voter in voters.voters],
    )


def _make_root(data_directory: Path) -> str:
    make_data_directory(data_directory)
    return str(data_directory.absolute())


def write_initial_voters(disk: Disk, metadata_directory: str, voters: VoterSet) -> None:
    """Write the initial voters. The file never changes afterwards."""
    entries = [
        {"node_id": v.key.node_id, "directory_id": v.key.directory_id.hex(), "address": v.address}
        for v in voters.voters
    ]
    replace_file(disk, f"{metadata_directory}/{VOTERS_FILE}", encode_checked({"version": 1, "voters": entries}))


def read_initial_voters(disk: Disk, metadata_directory: str) -> VoterSet:
    """Return the initial voters.

    Raises:
        FirstStartRefusedError: the file is missing or damaged.
    """
    path = f"{metadata_directory}/{VOTERS_FILE}"
    try:
        members = decode_checked(disk.read_file(path))
    except FileMissingError:
        members = None
    entries = None if members is None or members.get("version") != 1 else members.get("voters")
    if not isinstance(entries, list):
        raise FirstStartRefusedError(f"{path} is missing or damaged: wipe the data directory and start the node again")
    return voter_set([_parse_voter(path, entry) for entry in cast("list[object]", entries)])


def _parse_voter(path: str, entry: object) -> Voter:
    match entry:
        case {"node_id": int(node_id), "directory_id": str(directory_id), "address": str(address)}:
            key = ReplicaKey(node_id=NodeId(node_id), directory_id=bytes.fromhex(directory_id))
            return Voter(key=key, address=address)
        case _:
            raise FirstStartRefusedError(f"{path}: {entry} is no voter")


class FirstStart:
    """Asks the configured voters until it is safe to format, then formats.

    Until the quorum node itself takes over, it answers the probes of other nodes through `QuorumService`.

    Args:
        data_directory: the directory; not formatted.
        node_id: this node.
        cluster_id: the cluster to join.
        voters: `host:port` of the quorum listeners of all configured voters by node id, this node among them.
    """

    def __init__(self, data_directory: Path, *, node_id: int, cluster_id: str, voters: Mapping[int, str]) -> None:
        self._path = data_directory
        self._cluster_id = cluster_id
        self._addresses = {NodeId(number): address for number, address in voters.items()}
        self._disk = PosixDisk()
        self._root = _make_root(data_directory)
        self._key = ReplicaKey(node_id=NodeId(node_id), directory_id=self._load_or_draw(node_id))
        self._voters: VoterSet | None = None

    def _load_or_draw(self, node_id: int) -> bytes:
        path = f"{self._root}/{PENDING_FILE}"
        try:
            members = decode_checked(self._disk.read_file(path))
        except FileMissingError:
            members = None
        match members:
            case {"node_id": int(known_id), "cluster_id": self._cluster_id, "directory_id": str(directory_id)} if (
                known_id == node_id
            ):
                return bytes.fromhex(directory_id)
            case _:
                drawn = _draw_directory_id()
                content = {"node_id": node_id, "cluster_id": self._cluster_id, "directory_id": drawn.hex()}
                replace_file(self._disk, path, encode_checked(content))
                return drawn

    async def run(self, peers: Peers) -> None:
        """Return when the directory is formatted. Cancel it to stop.

        Args:
            peers: connections of this process to other servers.

        Raises:
            FirstStartRefusedError: a peer is of another cluster, or of another node than configured.
            storage.errors.StorageError: the directory cannot be written.
        """
        transport = QuorumTransport(peers)
        last_reason = ""
        while True:
            answers = await self._ask_all(transport)
            match decide_first_start(
                key=self._key, cluster_id=self._cluster_id, addresses=self._addresses, answers=answers
            ):
                case FormatVoter(voters=voters):
                    _format(self._path, self._key, self._cluster_id, voters)
                    self._voters = voters
                    return
                case FormatObserver(reason=reason):
                    logger.warning("event=first_start_as_observer node=%d reason=%s", self._key.node_id, reason)
                    fresh = ReplicaKey(node_id=self._key.node_id, directory_id=_draw_directory_id())
                    _format(self._path, fresh, self._cluster_id, voter_set([]))
                    self._key, self._voters = fresh, voter_set([])
                    return
                case Refuse(reason=reason):
                    raise FirstStartRefusedError(reason)
                case Wait(reason=reason):
                    if reason != last_reason:
                        logger.info("event=first_start_waits node=%d reason=%s", self._key.node_id, reason)
                        last_reason = reason
                    await asyncio.sleep(PROBE_PAUSE_MS / 1_000)

    async def _ask_all(self, transport: QuorumTransport) -> dict[NodeId, ProbeAnswer]:
        peers = [node_id for node_id in sorted(self._addresses) if node_id != self._key.node_id]
        answers = await asyncio.gather(*(self._ask(transport, self._addresses[node_id]) for node_id in peers))
        return {node_id: answer for node_id, answer in zip(peers, answers, strict=True) if answer is not None}

    async def _ask(self, transport: QuorumTransport, address: str) -> ProbeAnswer | None:
        request = pb.ProbeRequest(
            node_id=self._key.node_id, directory_id=self._key.directory_id, cluster_id=self._cluster_id
        )
        try:
            response = await transport.probe(address, request, timeout_ms=PROBE_TIMEOUT_MS)
        except PeerFailureError as error:
            if error.is_wrong_cluster:
                raise FirstStartRefusedError(str(error)) from error
            logger.debug("event=probe_failed error=%s", error)
            return None
        return ProbeAnswer(
            key=_key_of(response.node_id, response.directory_id),
            cluster_id=response.cluster_id,
            is_formatted=response.formatted,
            has_history=response.has_history,
            voters=tuple(_key_of(voter.node_id, voter.directory_id) for voter in response.voters),
            accepts_initial_voter=response.accepts_initial_voter,
        )

    def handle_snapshot(self, request: pb.FetchSnapshotRequest) -> AsyncGenerator[pb.FetchSnapshotResponse]:
        """Refuse: there is no snapshot yet. Always raises StoppedError."""
        raise StoppedError("this node is not formatted yet")

    def handle_probe(self, request: pb.ProbeRequest) -> pb.ProbeResponse:
        """Answer a peer's probe."""
        asking = _key_of(request.node_id, request.directory_id)
        if self._voters is not None:
            accepts = self._voters.contains(asking)
        else:
            accepts = request.cluster_id == self._cluster_id and asking.node_id in self._addresses
        return probe_response(
            key=self._key,
            cluster_id=self._cluster_id,
            is_formatted=self._voters is not None,
            has_history=False,
            voters=self._voters or voter_set([]),
            accepts=accepts,
        )

    def take_request(self, request: Request, on_answer: Callable[[Answer | StoppedError], None]) -> None:
        """Refuse every request: there is no log and no vote yet.

        Raises:
            StoppedError: always.
        """
        raise StoppedError(f"node {self._key.node_id} is not formatted yet, {type(request).__name__} refused")


def _key_of(node_id: int, directory_id: bytes) -> ReplicaKey:
    return ReplicaKey(node_id=NodeId(node_id), directory_id=directory_id)


def probe_response(
    *,
    key: ReplicaKey,
    cluster_id: str,
    is_formatted: bool,
    has_history: bool,
    voters: VoterSet,
    accepts: bool,
) -> pb.ProbeResponse:
    """Return the answer to a Probe."""
    return pb.ProbeResponse(
        node_id=key.node_id,
        directory_id=key.directory_id,
        cluster_id=cluster_id,
        formatted=is_formatted,
        has_history=has_history,
        voters=[pb.ReplicaKey(node_id=v.key.node_id, directory_id=v.key.directory_id) for v in voters.voters],
        accepts_initial_voter=accepts,
    )
