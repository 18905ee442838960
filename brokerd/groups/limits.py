# SPDX-License-Identifier: Apache-2.0
"""Every limit and default of groups, with its name and unit. Numbers only; `docs/groups.md` says what happens at each.

`metaquorum.metadata.topic_configs` has the bounds of configs.
"""

from __future__ import annotations

from typing import Final

DEFAULT_SESSION_TIMEOUT_MS: Final = 45_000
"""Milliseconds without a sign of life after which a member is removed."""

DEFAULT_HEARTBEAT_INTERVAL_MS: Final = 5_000
"""Milliseconds between two beats that a member is advised to keep."""

UNSETTLED_BEAT_MS: Final = 500
"""Milliseconds between two unary beats that a member is told to keep until it has reached its target: nothing is pushed to it."""

DEFAULT_PROCESSING_LIMIT_MS: Final = 5 * 60_000
"""Milliseconds that an application may take between two requests for records, and a member to give up partitions."""

MIN_PROCESSING_LIMIT_MS: Final = 1_000
"""Shortest processing limit that a member may ask for, in milliseconds."""

MAX_PROCESSING_LIMIT_MS: Final = 24 * 3_600_000
"""Longest processing limit that a member may ask for, in milliseconds."""

DEFAULT_ASSIGNMENT_INTERVAL_MS: Final = 200
"""Milliseconds for which changes of a group are collected before its target assignment is computed."""

ASSIGNMENT_RETRY_MS: Final = 10_000
"""Milliseconds without a result after which a target assignment is asked for again."""

DEFAULT_OFFSETS_RETENTION_MS: Final = 7 * 24 * 3_600_000
"""Milliseconds that an offset is kept after the later of its commit and the moment at which its group became empty."""

OFFSETS_SWEEP_MS: Final = 10 * 60_000
"""Milliseconds between two looks for expired offsets and for groups that hold nothing."""

MAX_GROUP_MEMBERS: Final = 1_000
"""Members of one group; more joins are refused with LIMIT_EXCEEDED."""

MAX_GROUPS: Final = 100_000
"""Groups of one coordinator partition; more are refused with LIMIT_EXCEEDED."""

MAX_GROUP_OFFSETS: Final = 100_000
"""Partitions for which one group may have offsets; more are refused with LIMIT_EXCEEDED."""

MAX_ID_BYTES: Final = 255
"""UTF-8 bytes of a group id, member id, instance id, rack, client id or client host."""

MAX_TOPIC_NAME_BYTES: Final = 249
"""Bytes of a topic name."""

MAX_SUBSCRIBED_NAMES: Final = 10_000
"""Topic names of one subscription."""

MAX_SUBSCRIPTION_BYTES: Final = 512 * 1024
"""UTF-8 bytes of the names of one subscription: the record of a member must fit into a batch."""

MAX_PATTERN_BYTES: Final = 1_024
"""UTF-8 bytes of a pattern."""

MAX_OFFSET_METADATA_BYTES: Final = 4_096
"""UTF-8 bytes of the metadata of one committed offset."""

MAX_REQUEST_PARTITIONS: Final = 4_000
"""Partitions of one commit, alteration or deletion of offsets."""

MAX_REQUEST_BYTES: Final = 768 * 1024
"""Bytes of the records of one commit or alteration; a larger one is refused and must be split."""

MAX_PREPARED_OFFSETS: Final = 3_000
"""Offsets that one round of an ingest may prepare; more are refused with LIMIT_EXCEEDED. With it, one decision takes them all."""

MAX_DIGEST_BYTES: Final = 64
"""Bytes of the digest by which the coordinator of an ingest names prepared offsets."""

PENDING_OFFSETS_MS: Final = 2_000
"""Milliseconds after which the outcome of pending offsets is asked for, and between two such questions."""

PENDING_RETRY_MS: Final = 100
"""Retry advice of OFFSETS_PENDING, in milliseconds."""

PENDING_CALL_MS: Final = 10_000
"""Milliseconds for one call between the coordinator of an ingest and that of a group."""

DECISION_OUTCOMES: Final = 200
"""Outcomes that one tick asks for; the rest follows in later ticks."""

MAX_TARGET_BYTES: Final = 768 * 1024
"""Bytes of one member's target assignment. A result with more is refused: the group needs more members."""

DECISION_RECORDS: Final = 1_000
"""Records of one decision of long work; the rest follows in later ticks, so that the event loop serves others in between."""

DECISION_BYTES: Final = 192 * 1024
"""Estimated bytes of the records of one decision of long work, some 40 ms. A larger record goes alone, so that progress is certain."""

SWEEP_OFFSETS: Final = 20_000
"""Offsets that one tick of the sweep looks at, in whole groups."""

INSTANCE_RETRY_MIN_MS: Final = 100
"""Shortest wait that INSTANCE_IN_USE advises, in milliseconds."""

MAX_LISTED_GROUPS: Final = 1_000
"""Groups in one answer to ListGroups."""
