# SPDX-License-Identifier: Apache-2.0
"""What goes over the wire and onto the disk, byte for byte: record batches, bulk frames, error codes, status details.

Shared by clients and servers; imports nothing of either. Only `status.py` and `rpc_details.py` know gRPC.
Source: proto/lograft/v1; docs/storage_format.md.
"""

from __future__ import annotations
