# SPDX-License-Identifier: Apache-2.0
"""Record batches: the unit of everything that is produced, stored, replicated and fetched.

Users of the format import only this module: `encode_batch` makes a batch, `compose_batch` makes one in pieces, `check_batch`
checks one, and `RecordBatch` reads one. It has no code of its own; `encoder.py`, `checker.py` and `reader.py` have it.
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
