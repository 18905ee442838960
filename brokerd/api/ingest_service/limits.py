# SPDX-License-Identifier: Apache-2.0
"""Every limit of IngestService beyond those of `brokerd.ingests.limits`, with its name and unit.

Numbers only; `docs/ingest.md` says what happens at each.
"""

from __future__ import annotations

from typing import Final

COORDINATOR_WAIT_MS: Final = 5_000
"""Most milliseconds that FindIngestCoordinator waits for the topic of ingests to be made."""

FIND_RETRY_MS: Final = 250
"""Retry advice, in milliseconds, while an ingest has no coordinator."""

LIST_CALL_MS: Final = 5_000
"""Most milliseconds that ListIngests waits for a coordinator; then the coordinator counts as missing."""

FOUND_INGESTS_MAX: Final = 1_000
"""Ingests of one FindIngestCoordinator."""

PUBLISHED_PARTITIONS_MAX: Final = 1_000
"""Partitions of one GetPublished."""

TOUCHES_WITHIN_TTL: Final = 3
"""Calls that keep an ingest alive within its time to live, as a client is told."""

OFFSET_METADATA_BYTES_MAX: Final = 4_096
"""UTF-8 bytes of the text of an offset."""

RESPONSE_MARGIN_BYTES: Final = 64 * 1024
"""Bytes below the largest gRPC message that a response must stay."""
