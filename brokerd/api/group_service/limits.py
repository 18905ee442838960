# SPDX-License-Identifier: Apache-2.0
"""Every limit of GroupService, with its name and unit. Numbers only; `docs/groups.md` section "Service" says what happens at each."""

from __future__ import annotations

from typing import Final

MAX_GROUP_STREAMS: Final = 8_192
"""Groups streams that may be open on one broker; more are refused with OVERLOADED."""

MAX_GROUP_STREAMS_PER_CONNECTION: Final = 64
"""Groups streams that may be open on one connection; more are refused with LIMIT_EXCEEDED."""

MAX_STREAM_HANDLES: Final = 1_000
"""Handles that one stream may bind over its life, each for a member; a beat with another one is refused with LIMIT_EXCEEDED."""

MAX_BEAT_MEMBERS: Final = 1_000
"""Members in one message of a stream; a larger message ends the stream with INVALID_REQUEST."""

MAX_STREAM_REQUESTS: Final = 1_024
"""Beats and commits of one stream that wait for their answers; from this number on the broker stops reading the stream."""

MAX_STREAM_REQUEST_BYTES: Final = 4 * 1024 * 1024
"""Bytes of these requests; from this number on the broker stops reading the stream."""

MAX_STREAM_OUTBOX_BYTES: Final = 4 * 1024 * 1024
"""Bytes of answers and pushes that wait for a client that does not read; with more the stream ends with OVERLOADED. A single larger
message is still sent to a client that reads."""

STATES_MESSAGE_BYTES: Final = 256 * 1024
"""Bytes of member states after which the next message begins."""

SERVER_BEAT_MS: Final = 5_000
"""Milliseconds between two messages of the server on a stream, at most."""

CLIENT_SILENCE_MS: Final = 15_000
"""Milliseconds without a message of the client after which the server ends its stream."""

CLOSING_MS: Final = 1_000
"""Milliseconds that requests under way have to be answered when the client has closed its side, or the broker stops."""

GROUP_CALL_MS: Final = 30_000
"""Most milliseconds that a call or a request on a stream waits for its answer, whatever its deadline."""

COORDINATOR_WAIT_MS: Final = 5_000
"""Most milliseconds that FindCoordinator waits for the topic of groups to be made."""

FIND_RETRY_MS: Final = 250
"""Retry advice, in milliseconds, while a group has no coordinator."""

LIST_CALL_MS: Final = 5_000
"""Most milliseconds that ListGroups waits for a coordinator; then the coordinator counts as missing."""

MAX_FOUND_GROUPS: Final = 1_000
"""Groups of one FindCoordinator."""

MAX_FETCHED_PARTITIONS: Final = 10_000
"""Partitions that one FetchOffsets may name."""

MAX_DELETION_STEPS: Final = 400
"""Decisions that one DeleteGroup takes at most; the largest group needs some 170."""

RESPONSE_MARGIN_BYTES: Final = 64 * 1024
"""Bytes below the largest gRPC message that a response must stay."""
