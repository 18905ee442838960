# SPDX-License-Identifier: Apache-2.0
"""The reference of errors: codes from the contract and the client's table, exceptions from `lograft.errors`, and what to do.

`ADVICE` is the only hand-written part. Each code needs one; a code without one fails the build.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import lograft
from lograft import errors
from lograft.errors import error_for
from lograft.wire.codes import ErrorCode
from lograft.wire.status import STATUS_CODES

CONTRACT = Path(__file__).resolve().parents[3] / "proto" / "lograft" / "v1" / "errors.proto"
"""The comments of its values say what each code means."""

ADVICE = {
    ErrorCode.UNSPECIFIED: "Report it: a server must name a reason.",
    ErrorCode.INTERNAL: "Look into the log of the server, and report it.",
    ErrorCode.INVALID_REQUEST: "Correct the request. The message names the field.",
    ErrorCode.WRONG_CLUSTER: "Connect to the cluster that `cluster_id` names, or correct `cluster_id`.",
    ErrorCode.UNKNOWN_TOPIC: "Create the topic, or correct its name. No topic is created by use.",
    ErrorCode.UNKNOWN_PARTITION: "Correct the partition: it is below the topic's partition count.",
    ErrorCode.INVALID_TOPIC_NAME: "Choose another name: 1 to 249 of the characters `A-Z a-z 0-9 . _ -`, but neither `.` nor `..`.",
    ErrorCode.TOPIC_ALREADY_EXISTS: "Use the topic that exists, or choose another name.",
    ErrorCode.INVALID_PARTITION_COUNT: "Choose another count. A topic can only grow.",
    ErrorCode.INVALID_REPLICATION_FACTOR: "Choose a factor of at least 1.",
    ErrorCode.INVALID_CONFIG: "Correct the config. The message says what is allowed.",
    ErrorCode.NOT_LEADER: "Nothing: the client asks the leader and tries again. If it stays, run `lograft doctor`.",
    ErrorCode.LEADER_NOT_AVAILABLE: "Wait for the election. If it stays, run `lograft doctor`: it names the missing replicas.",
    ErrorCode.NOT_CONTROLLER: "Nothing: the client or the broker asks the active controller.",
    ErrorCode.BROKER_FENCED: "Wait until the broker has caught up. If it stays, look at `lograft brokers list`.",
    ErrorCode.STALE_BROKER_EPOCH: "Nothing in a client: a broker was replaced by a newer process with its id.",
    ErrorCode.DUPLICATE_BROKER: "Give each broker its own id, or stop the other process.",
    ErrorCode.MESSAGE_TOO_LARGE: "Send less in one record, or raise `max.message.bytes` of the topic.",
    ErrorCode.CORRUPT_BATCH: "Send again. If it comes back, suspect memory or network of the client's machine.",
    ErrorCode.INVALID_BATCH: "Correct the program that encodes the batch.",
    ErrorCode.UNSUPPORTED_FORMAT: "Use codec none or zstd, and the present batch format.",
    ErrorCode.INVALID_ACKS: 'Use "all", "leader" or "none".',
    ErrorCode.OFFSET_OUT_OF_RANGE: "Seek to an offset that exists, or set `on_out_of_range`. The error has the readable range.",
    ErrorCode.DATA_LOSS: "Restore the records from elsewhere, then seek past the range.",
    ErrorCode.OUT_OF_ORDER_SEQUENCE: "Make a new producer. In your own client: begin with a new identity (`InitProducer`).",
    ErrorCode.PRODUCER_FENCED: "Stop this producer: a newer one has its identity.",
    ErrorCode.OUTCOME_UNKNOWN: "Look before you repeat: describe the topic, the config or the records that the call changes.",
    ErrorCode.TIMED_OUT: "Try again, with more time if the cluster is busy. A batch that timed out may be in the log.",
    ErrorCode.OVERLOADED: "Try again after `retry_after_ms`. If it stays, use fewer connections or streams.",
    ErrorCode.STORAGE_FAILED: "Free space, or repair the disk: see `lograft directories list`.",
    ErrorCode.SHUTTING_DOWN: "Nothing: the client goes to another broker, or waits for this one.",
    ErrorCode.FENCED_EPOCH: "Nothing: the client fetches metadata and tries again.",
    ErrorCode.QUORUM_UNAVAILABLE: "Wait for the election. If it stays, a majority of the voters is down: `lograft quorum describe`.",
    ErrorCode.INVALID_ROUTE: "Correct the client that binds the routes of the stream.",
    ErrorCode.METADATA_NOT_REACHED: "Try again: the broker catches up.",
    ErrorCode.NOT_ENOUGH_BROKERS: "Start more brokers, or ask for fewer replicas.",
    ErrorCode.LIMIT_EXCEEDED: "Ask for fewer topics, partitions or routes.",
    ErrorCode.TRANSACTION_COORDINATOR_FENCED: "Nothing in a client: a newer coordinator has taken over.",
    ErrorCode.NOT_ENOUGH_REPLICAS: "Bring the brokers of the other replicas back. An idempotent producer tries again by itself.",
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: (
        "Bring the brokers of the other replicas back. Send again only under the same producer identity and sequence."
    ),
    ErrorCode.OFFSET_NOT_AVAILABLE: "Ask again after a moment.",
    ErrorCode.COORDINATOR_LOADING: (
        "Nothing: the client asks again. If it stays, `lograft topics describe __groups` says which partitions do not serve, and why."
    ),
    ErrorCode.NOT_COORDINATOR: (
        "Nothing: the client finds the coordinator. In your own client: ask the broker that the hint names, else `FindCoordinator`."
    ),
    ErrorCode.UNKNOWN_MEMBER: "Nothing: the consumer joins again. In your own client: join with epoch 0.",
    ErrorCode.FENCED_MEMBER_EPOCH: (
        "Nothing: the consumer joins again. In your own client: stop reading the partitions, and join with epoch 0."
    ),
    ErrorCode.STALE_MEMBER_EPOCH: (
        "Do not repeat the commit: the partition has another owner, which reads on from the last committed offset. "
        "If it happens often, process fewer records between two polls."
    ),
    ErrorCode.GROUP_NOT_FOUND: "Correct the group id. A group begins with its first member or its first commit.",
    ErrorCode.GROUP_NOT_EMPTY: "Stop the members of the group first.",
    ErrorCode.INSTANCE_IN_USE: (
        "Nothing if the old process is gone: the consumer joins when that process's session has ended. "
        "Otherwise give each process its own `instance_id`."
    ),
    ErrorCode.INSTANCE_FENCED: "Stop this process: a newer one has its `instance_id`. Give each process its own.",
    ErrorCode.INVALID_PATTERN: (
        "Correct the pattern: an RE2 expression that matches whole names of topics, without back references and look-around."
    ),
    ErrorCode.UNKNOWN_ASSIGNOR: 'Use "uniform" or "range", or leave it out.',
    ErrorCode.PROCESSING_LIMIT_EXCEEDED: (
        "Poll more often, take fewer records with each poll, or raise `processing_limit_ms`. The consumer joins again at its next poll."
    ),
    ErrorCode.REQUEST_SUPERSEDED: "Nothing: a later request of the same member has been handled.",
    ErrorCode.GROUP_SUBSCRIBED: "Stop the members that subscribe to the topic first.",
    ErrorCode.INGEST_NOT_FOUND: "Correct the ingest id, or open the ingest.",
    ErrorCode.INGEST_FENCED: "Stop this process: a newer one has opened the ingest and goes on with it.",
    ErrorCode.INGEST_COMMITTED: "Nothing: the ingest is done. A new ingest needs a new id.",
    ErrorCode.INGEST_ABORTED: "Open the ingest again, and stage all its records again.",
    ErrorCode.INGEST_CONFLICT: "Use a new id: this one stands for other records, which are published.",
    ErrorCode.INGEST_PUBLISHING: "Nothing: the client tries again. If it lasts, see `lograft doctor` for partitions without a leader.",
    ErrorCode.INGEST_INCOMPLETE: "Seal every attempt of the manifest after all its records were acknowledged, then commit again.",
    ErrorCode.OFFSETS_PENDING: "Nothing: the client tries again. The decision takes seconds at most.",
}

_VALUE = re.compile(r"((?:^  //.*\n)+)^  ERROR_CODE_(\w+) = \d+;", re.MULTILINE)


def meanings() -> dict[ErrorCode, str]:
    """Return what the contract says about each code."""
    found = _VALUE.findall(CONTRACT.read_text())
    return {ErrorCode[name]: " ".join(comment.replace("  //", "").split()) for comment, name in found}


def error_codes() -> str:
    """Return one section for each code."""
    lines: list[str] = []
    said = meanings()
    for code in ErrorCode:
        kind = type(error_for(code, ""))
        retriable = "yes" if code.retriable else "no"
        if code.refresh_metadata:
            retriable += (
                ", with fresh metadata" if code.retriable else ", but the client asks once more with fresh metadata"
            )
        lines += [
            f"(code-{code.name.lower().replace('_', '-')})=",
            f"### `{code.name}`",
            "",
            said[code],
            "",
            f"Exception: [`{kind.__name__}`](#{_name(kind)}) · Retriable: {retriable} · "
            f"gRPC: `{STATUS_CODES[code].name}` · Number: {code.value}",
            "",
            f"**What to do.** {ADVICE[code]}",
            "",
        ]
    return "\n".join(lines)


def error_classes() -> str:
    """Return the documentation of the exceptions, in the order of the module, then of the values that they carry."""
    classes = [kind for kind in vars(errors).values() if inspect.isclass(kind) and kind.__module__ == errors.__name__]
    exceptions = [kind for kind in classes if issubclass(kind, Exception)]
    values = [kind for kind in classes if kind not in exceptions]
    lines = [
        line for kind in exceptions for line in (f".. autoexception:: {_name(kind)}()", "   :show-inheritance:", "")
    ]
    lines += [line for kind in values for line in (f".. autoclass:: {_name(kind)}", "")]
    return "\n".join(["```{eval-rst}", *lines, "```"])


def _name(kind: type) -> str:
    """Return the shortest public name of a class of `lograft.errors`."""
    return f"lograft.{kind.__name__}" if kind.__name__ in lograft.__all__ else f"lograft.errors.{kind.__name__}"
