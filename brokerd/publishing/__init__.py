# SPDX-License-Identifier: Apache-2.0
"""What the leaders of partitions do for ingests: they publish what a decision names, check what is staged, and free what is not needed.

Pure: `parts` (values), `plan` (which staged batches, in which order), `resumption` (where to go on), `garbage` (what can go). Shells:
`staged_reads` (staged batches, from here or from their leader), `publisher` (parts), `checks` (before a decision), `sweep`, `quota`;
`service` and `calls` are both ends of the carrier.
Source: docs/ingest.md, sections "Publication" and "Staging".
"""

from __future__ import annotations
