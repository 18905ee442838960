# SPDX-License-Identifier: Apache-2.0
"""Every limit of ingests, with its name and unit. Numbers only; `docs/ingest.md` says what happens at each."""

from __future__ import annotations

from typing import Final

INGEST_ID_BYTES_MAX: Final = 255
"""UTF-8 bytes of an ingest id."""

ATTEMPT_ID_BYTES_MAX: Final = 64
"""Bytes of an attempt id."""

OWNER_BYTES_MAX: Final = 64
"""Bytes of the owner of an open."""

FENCED_OWNERS_MAX: Final = 16
"""Owners of earlier opens of one ingest that are remembered, the last ones, so that they do not take it back."""

TOPIC_NAME_BYTES_MAX: Final = 249
"""UTF-8 bytes of a topic name."""

GROUP_ID_BYTES_MAX: Final = 255
"""UTF-8 bytes of a group id."""

TOPICS_MAX: Final = 100
"""Topics of one ingest."""

OPEN_INGESTS_MAX: Final = 10_000
"""Open and decided ingests of one coordinator."""

KNOWN_INGESTS_MAX: Final = 100_000
"""Ingests of one coordinator in any state: committed and aborted ones are kept for days."""

ATTEMPTS_MAX: Final = 40_000
"""Attempts of one ingest."""

ATTEMPTS_TOTAL_MAX: Final = 200_000
"""Attempts of one coordinator."""

SLICES_MAX: Final = 300_000
"""Parts of all sealed attempts of one ingest: each is a slice of a publication."""

SLICES_TOTAL_MAX: Final = 600_000
"""Parts of all sealed attempts of one coordinator."""

MANIFEST_ATTEMPTS_MAX: Final = 20_000
"""Attempts of one manifest."""

PARTITIONS_MAX: Final = 3_000
"""Partitions that one decision, or one attempt over all its rounds, has records for."""

PARTS_TOTAL_MAX: Final = 1_000_000
"""Parts of all decisions that one coordinator knows, those of results included."""

PARTITION_RECORDS_MAX: Final = 2**30 - 1
"""Records of one partition in decisions that are not complete: less than half of the sequences, so that their order shows."""

OFFSETS_MAX: Final = 3_000
"""Offsets of a group in one decision."""

DECISION_RECORDS_MAX: Final = 4_096
"""Records of a commit: what the coordinator runtime takes at once."""

DECISION_BYTES_MAX: Final = 900 * 1024
"""Estimated bytes of the records of a commit: below what the coordinator runtime takes at once."""

SWEEP_RECORDS: Final = 1_000
"""Records of one tick of long work; the rest follows in later ticks, so that the event loop serves others in between."""

SWEEP_BYTES: Final = 192 * 1024
"""Estimated bytes of the records of one tick of long work. A larger record goes alone, so that progress is certain."""

SWEEP_ATTEMPTS: Final = 20_000
"""Attempts that one tick looks at for garbage, in whole ingests."""

TTL_MS_DEFAULT: Final = 3_600_000
"""Milliseconds without a call after which an open ingest is aborted, unless its open says otherwise."""

TTL_MS_MIN: Final = 10_000
"""Shortest time to live, in milliseconds."""

TTL_MS_MAX: Final = 604_800_000
"""Longest time to live, in milliseconds."""

LOADED_GRACE_MS: Final = 3_600_000
"""Milliseconds after loading in which no ingest with a longer time to live is aborted; one with a shorter gets all of its own."""

TOUCHES_PER_TTL: Final = 10
"""The date of a touch is written when it is older than this fraction of the time to live."""

COMMITTED_KEEP_MS: Final = 604_800_000
"""Milliseconds that a committed single ingest is kept."""

ABORTED_KEEP_MS: Final = 3_600_000
"""Milliseconds that an aborted single ingest is kept."""

REPEATED_KEEP_MS: Final = 604_800_000
"""Milliseconds that an aborted repeated ingest is kept: its last decided round must be known for as long."""

PUBLISH_RETRY_MS: Final = 1_000
"""Milliseconds without an answer after which a publication, or the offsets of a group, are asked for again."""

PUBLISHING_MAX: Final = 64
"""Publications of one coordinator that are asked for at once, and groups that are told at once; further ones wait."""

LISTED_MAX: Final = 1_000
"""Ingests in one answer to a list."""

LIVE_PRODUCERS_MAX: Final = 1_000
"""Producer ids of one question for live attempts."""

# The shell.

ASKED_PARTS_MAX: Final = 1_024
"""Publications that the coordinators of one broker wait for; further ones are left out, and their cores ask again."""

TOLD_GROUPS_MAX: Final = 256
"""Groups that the coordinators of one broker tell an outcome at the same time; further ones are left out, and their cores ask again."""

COMMITS_MAX: Final = 512
"""Commits, and opens that wait for one, that one broker carries out at the same time; more are refused with OVERLOADED."""

CHECKS_MAX: Final = 16
"""Staging partitions that one commit has checked at the same time."""

CALL_MS: Final = 30_000
"""Milliseconds that a command of a client may take, whatever its deadline."""

COMMIT_CALL_MS: Final = 600_000
"""Milliseconds that a commit, or an open that waits for one, may take, whatever its deadline. The publication goes on without it."""

ASK_AGAIN_MS: Final = 2_000
"""Milliseconds after which a call that waits for a decision to be published asks again: the word of it may have been lost."""

CHECKS_MS: Final = 60_000
"""Milliseconds that the checks of one commit may take, with all repetitions; and its group for the offsets."""

COMMIT_RETRY_MS: Final = 100
"""Shortest pause, in milliseconds, before a check or a prepare of a commit is repeated; it doubles up to `COMMIT_RETRY_MAX_MS`."""

COMMIT_RETRY_MAX_MS: Final = 2_000
"""Longest such pause, in milliseconds."""

TOPIC_WAIT_MS: Final = 2_000
"""Milliseconds that an open waits for topics that this broker's metadata does not have yet."""

STAGING_TOPICS_MAX: Final = 8
"""Staging topics that one broker has made at the same time."""

STAGING_ATTEMPTS: Final = 5
"""Times that the controller is asked for the staging topic of a topic that grows."""

STAGING_CREATE_MS: Final = 10_000
"""Milliseconds that the controller has to make a staging topic, all attempts together."""

STAGING_APPLY_MS: Final = 5_000
"""Milliseconds until this broker's metadata must have a staging topic that the controller has made."""

STAGING_SEGMENT_BYTES: Final = 16 * 1024 * 1024
"""`segment.bytes` of staging topics: small, so that freed space returns soon."""

QUESTION_MS: Final = 5_000
"""Milliseconds that a broker waits for the answer of a coordinator to a question."""

QUESTIONS_MAX: Final = 8
"""Coordinators that one sweep, or one call of a client, asks at the same time."""

DELETED_RETRY_MS: Final = 250
"""Milliseconds before deleted topics are handed to a coordinator again that took no command."""
