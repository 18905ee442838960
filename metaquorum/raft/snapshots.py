# SPDX-License-Identifier: Apache-2.0
"""Snapshots: when a leader answers with one, how a follower handles it, and when the log is trimmed.

Owns these decisions. The shell downloads, checks and stores snapshots; the core knows only their ids. Laws:

* A snapshot holds only committed records: its end is at or below the high watermark of the node that made it.
* A log that begins above 0 begins at the end of a snapshot that the node has. So a replica whose offset is too old can be served.
* What is below the high watermark is never given up: a follower refuses an offered snapshot at or below it. It also refuses one whose
  end its log contains, because it may have promised the records after it.
* A download belongs to one follower role. Events after the end of that role change nothing.

Source: KIP-630; KIP-595 "Fetch". `docs/quorum.md` section "Snapshots".
"""

from __future__ import annotations

from collections.abc import Sequence

from metaquorum.raft.effects import DiscardSnapshot, DownloadSnapshot, InstallSnapshot, TrimLog, Violation
from metaquorum.raft.events import (
    Failure,
    SnapshotCreated,
    SnapshotDownloaded,
    SnapshotFailed,
    SnapshotProgressed,
    SnapshotServed,
)
from metaquorum.raft.kept_snapshots import Download
from metaquorum.raft.log_view import LogView
from metaquorum.raft.messages import FetchRequest, Refusal
from metaquorum.raft.peers import leader_is_gone
from metaquorum.raft.roles import Follower, Leader
from metaquorum.raft.state import RaftState
from metaquorum.raft.types import LOG_BEGIN, Offset, QuorumEpoch, ReplicaKey, SnapshotId


def must_restart_log(newest: SnapshotId | None, log: LogView) -> bool:
    """Return whether the log on disk must restart at the end of the newest snapshot because an install was interrupted.

    The snapshot holds committed records. So a log that does not contain its end, or has another epoch there, has no valuable record
    that the snapshot lacks.
    """
    return newest is not None and newest.end_offset >= log.log_start_offset and not log.contains(newest)


def restore(state: RaftState, ids: Sequence[SnapshotId], *, committed_offset: Offset) -> None:
    """Restore the state from disk: snapshots, and how far the log is known to be committed."""
    log = state.log
    assert all(snapshot.end_offset >= log.log_start_offset for snapshot in ids), f"{ids} before {log.log_start_offset}"
    assert log.log_start_offset == LOG_BEGIN or ids, f"the log starts at {log.log_start_offset} without a snapshot"
    assert committed_offset <= log.log_end_offset, f"committed {committed_offset} beyond {log.log_end_offset}"
    state.snapshots.replace(ids)
    latest = state.snapshots.latest
    if latest is not None:
        assert log.contains(latest), f"{latest} is not of the log"
        committed_offset = max(committed_offset, latest.end_offset)
    if committed_offset > LOG_BEGIN:
        state.raise_high_watermark(committed_offset)


def snapshot_for(state: RaftState, request: FetchRequest) -> SnapshotId | None:
    """Return the snapshot that a replica needs before it can fetch from this leader's log; None if the log suffices."""
    latest, log = state.snapshots.latest, state.log
    if latest is None:
        return None
    if request.fetch_offset < log.log_start_offset:
        return latest
    if request.fetch_offset == log.log_start_offset and request.last_fetched_epoch != log.start_epoch:
        return latest
    if request.last_fetched_epoch < log.start_epoch:
        # The two logs diverge below this log's start, so the leader cannot name a diverging epoch.
        return latest
    # A snapshot is faster for an empty replica, even if the log still has everything.
    return latest if request.fetch_offset == LOG_BEGIN else None


def check_download(
    state: RaftState, *, cluster_id: str, quorum_epoch: QuorumEpoch, replica: ReplicaKey, snapshot: SnapshotId
) -> Refusal | None:
    """Return why this node may not serve a piece of a snapshot, or None; called before every piece."""
    if cluster_id != state.identity.cluster_id:
        return Refusal.WRONG_CLUSTER
    if quorum_epoch < state.quorum_epoch:
        return Refusal.FENCED_EPOCH
    if quorum_epoch > state.quorum_epoch:
        return Refusal.UNKNOWN_EPOCH
    if not isinstance(state.role, Leader):
        return Refusal.NOT_LEADER
    if replica == state.key:
        return Refusal.INVALID_REQUEST
    return None if snapshot in state.snapshots.ids else Refusal.SNAPSHOT_NOT_FOUND


def download_of(state: RaftState, role: Follower) -> Download | None:
    """Return the download that this follower role waits for, or None."""
    download = state.snapshots.download
    return download if download is not None and download.role is role else None


def begin_download(state: RaftState, role: Follower, snapshot: SnapshotId) -> bool:
    """Start a download if the leader's offer makes sense. Return whether it started."""
    known_offset = max(state.high_watermark or LOG_BEGIN, state.log.log_start_offset)
    is_prefix = state.log.contains(snapshot)
    if snapshot.end_offset <= known_offset or is_prefix or not 0 < snapshot.epoch <= state.quorum_epoch:
        state.report(
            Violation.SNAPSHOT,
            f"leader {role.leader_id} offers {snapshot} to a log that is committed up to {known_offset}"
            f"{' and has it' if is_prefix else ''} in epoch {state.quorum_epoch}: data was lost somewhere",
        )
        return False
    download = Download(download_id=state.next_request_id(), snapshot=snapshot, role=role)
    state.snapshots.download = download
    state.outbox.emit(
        DownloadSnapshot(
            download_id=download.download_id,
            address=role.leader_address,
            quorum_epoch=state.quorum_epoch,
            snapshot=snapshot,
        )
    )
    return True


def discard_orphan(state: RaftState) -> None:
    """Discard a download whose follower role has ended."""
    download = state.snapshots.download
    if download is not None and download.role is not state.role:
        state.snapshots.download = None
        state.outbox.emit(DiscardSnapshot(download_id=download.download_id))


def on_event(
    state: RaftState,
    event: SnapshotCreated | SnapshotProgressed | SnapshotDownloaded | SnapshotFailed | SnapshotServed,
    *,
    now_ms: int,
) -> None:
    """Handle an event about a snapshot."""
    match event:
        case SnapshotCreated(snapshot=snapshot):
            _on_created(state, snapshot)
        case SnapshotServed(replica=replica):
            _on_served(state, replica, now_ms)
        case SnapshotProgressed(download_id=download_id):
            role = _waiting(state, download_id)
            if role is not None:
                _heard(state, role, now_ms)
        case SnapshotDownloaded():
            _on_downloaded(state, event, now_ms)
        case SnapshotFailed(download_id=download_id, failure=failure):  # pragma: no branch -- all kinds are above
            role = _waiting(state, download_id)
            if role is not None:
                state.snapshots.download = None
                # Fetch again: the leader may have a newer snapshot by now, or its log may suffice.
                role.fetch.fail(None, now_ms=now_ms, config=state.config)
                if failure is Failure.REFUSED:
                    leader_is_gone(state, now_ms=now_ms)


def _waiting(state: RaftState, download_id: int) -> Follower | None:
    """Return the current role if it waits for exactly this download, else None."""
    download = state.snapshots.download
    if download is None or download.download_id != download_id or download.role is not state.role:
        return None
    return download.role


def _heard(state: RaftState, role: Follower, now_ms: int) -> None:
    role.has_fetched = True
    role.is_leader_gone = False
    role.fetch_deadline_ms = now_ms + state.config.fetch_timeout_ms


def _on_downloaded(state: RaftState, event: SnapshotDownloaded, now_ms: int) -> None:
    role, download = _waiting(state, event.download_id), state.snapshots.download
    if role is None or download is None:
        state.outbox.emit(DiscardSnapshot(download_id=event.download_id))
        return
    snapshot = download.snapshot
    state.snapshots.download = None
    state.log.truncate_fully(snapshot)
    state.voters.reset(snapshot.end_offset, event.voters)
    state.snapshots.replace((snapshot,))
    # Nothing was fetched since the offer was above the high watermark, so neither of these falls.
    state.raise_high_watermark(snapshot.end_offset)
    state.commit_offset = snapshot.end_offset
    state.outbox.emit(InstallSnapshot(download_id=event.download_id, snapshot=snapshot))
    _heard(state, role, now_ms)


def _on_created(state: RaftState, snapshot: SnapshotId) -> None:
    """Keep a snapshot of this node's own image, and trim the log to the oldest kept one."""
    latest = state.snapshots.latest
    if latest is not None and snapshot.end_offset <= latest.end_offset:
        # One from the leader was installed while this one was being made.
        return
    assert snapshot.end_offset <= state.commit_offset, f"{snapshot} is beyond what is committed, {state.commit_offset}"
    assert state.log.contains(snapshot), f"{snapshot} is not of the log"
    kept = (*state.snapshots.ids, snapshot)[-state.config.kept_snapshots :]
    state.snapshots.replace(kept)
    oldest = kept[0]
    if len(kept) == state.config.kept_snapshots and oldest.end_offset > state.log.log_start_offset:
        state.log.truncate_prefix(oldest)
        state.outbox.emit(TrimLog(snapshot=oldest))


def _on_served(state: RaftState, replica: ReplicaKey, now_ms: int) -> None:
    """Count a piece sent as a fetch: a replica that downloads does not fetch, but it is alive for the check of the majority."""
    if isinstance(state.role, Leader):
        progress = state.role.voters.get(replica.node_id)
        if progress is not None and progress.key == replica:
            progress.last_fetch_ms = now_ms
            call = state.role.begin_calls[replica.node_id]
            call.ready_at_ms = max(call.ready_at_ms, now_ms + state.config.begin_quorum_epoch_after_ms)
