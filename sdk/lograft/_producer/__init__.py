# SPDX-License-Identifier: Apache-2.0
"""From `send` to the receipt: what both producers share.

`deliveries` takes records into the `accumulator`, `sender` carries sealed batches to the `engine`, which finds leaders, and `stream`
puts them on the wire. Pure: `accumulator`, `batches`, `buffers`, `partitioner`, `record_columns`, `sequencer`.
"""

from __future__ import annotations
