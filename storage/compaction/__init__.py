# SPDX-License-Identifier: Apache-2.0
"""Compaction: of the records with one key, only the newest stays; offsets never change and never go missing.

Start at `cleaner` (the background work over many logs) and `pass_` (one pass over one log). `plan`, `key_map`, `survivors` and
`rewrite` are pure; `PartitionLog.swap` is the one step that changes a log.
Source: docs/storage.md section 6; Kafka, LogCleaner.
"""

from __future__ import annotations
