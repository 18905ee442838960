# SPDX-License-Identifier: Apache-2.0
"""Compaction: of all records with the same key, only the newest stays. Offsets never change and never go missing.

Start at `cleaner` (the background work over many logs) and `pass_` (one pass over one log). `plan`, `key_map`,
`survivors` and `rewrite` are pure. Only `PartitionLog.swap` changes a log.
Source: docs/storage.md section 6; Kafka, LogCleaner.
"""

from __future__ import annotations
