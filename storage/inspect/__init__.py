# SPDX-License-Identifier: Apache-2.0
"""Looks at data directories, log directories and single files without a server, a lock or write access.

`formats` reads the binary files, written from docs/storage_format.md and not from the engine, so that the two check each other;
`texts` reads the text checkpoints with the decoders of the engine and judges what they say; `log_check` judges a log by the laws of
that page; `dump` shows what is there; `cli` is `lograft log`.
Law: nothing here opens a file for writing, or changes a directory.
"""

from __future__ import annotations
