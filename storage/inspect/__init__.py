# SPDX-License-Identifier: Apache-2.0
"""Inspects data directories, log directories and single files, without a server, a lock or write access.

`formats` reads the binary files. It follows docs/storage_format.md and not the engine, so that the two check each
other. `texts` reads the text checkpoints with the engine's decoders and judges their content. `log_check` judges a log
by the laws of that page. `dump` shows content. `cli` is `lograft log`.
Law: nothing here opens a file for writing, or changes a directory.
"""

from __future__ import annotations
