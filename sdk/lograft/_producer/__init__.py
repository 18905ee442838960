# SPDX-License-Identifier: Apache-2.0
"""The way of a record from `send` to the receipt; both producers share it.

`deliveries` puts records into the `accumulator`. `sender` carries sealed batches to the `engine`, which finds leaders, and
`stream` sends them. Pure modules: `accumulator`, `batches`, `buffers`, `partitioner`, `record_columns`, `sequencer`.
"""

from __future__ import annotations
