# SPDX-License-Identifier: Apache-2.0
"""Record batches: the unit of everything that is produced, stored, replicated and fetched.

The one import for users of the format: `encode_batch` makes one (`compose_batch` one in pieces), `check_batch` judges one,
`RecordBatch` reads one.
Owns no code: `encoder.py`, `checker.py`, `reader.py` do.
"""

from __future__ import annotations

from lograft.wire.checker import check_batch, check_crc
from lograft.wire.compression import Codec
from lograft.wire.encoded import EncodedBatch
from lograft.wire.encoder import RecordHeaders, compose_batch, encode_batch
from lograft.wire.header import BatchHeader, iter_batches, read_header, stamp, stamped_prefix
from lograft.wire.reader import BatchRecord, RecordBatch, read_batches

__all__ = [
    "BatchHeader",
    "BatchRecord",
    "Codec",
    "EncodedBatch",
    "RecordBatch",
    "RecordHeaders",
    "check_batch",
    "check_crc",
    "compose_batch",
    "encode_batch",
    "iter_batches",
    "read_batches",
    "read_header",
    "stamp",
    "stamped_prefix",
]
