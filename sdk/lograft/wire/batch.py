# SPDX-License-Identifier: Apache-2.0
"""Record batches: the unit of everything that is produced, stored, replicated and fetched.

The one import for users of the format: `encode_batch` makes one, `check_batch` judges one, `RecordBatch` reads one.
Owns no code: `encoder.py`, `checker.py`, `reader.py` do.
"""

from __future__ import annotations

from lograft.wire.checker import check_batch, check_crc
from lograft.wire.compression import Codec
from lograft.wire.encoder import RecordHeaders, encode_batch, stamp_producer
from lograft.wire.header import BatchHeader, iter_batches, read_header, stamp, stamped_prefix
from lograft.wire.reader import BatchRecord, RecordBatch, read_batches

__all__ = [
    "BatchHeader",
    "BatchRecord",
    "Codec",
    "RecordBatch",
    "RecordHeaders",
    "check_batch",
    "check_crc",
    "encode_batch",
    "iter_batches",
    "read_batches",
    "read_header",
    "stamp",
    "stamp_producer",
    "stamped_prefix",
]
