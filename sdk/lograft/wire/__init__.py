# SPDX-License-Identifier: Apache-2.0
"""The bytes on the wire and on disk: record batches, bulk frames, error codes, status details.

Clients and servers share this package, and it imports nothing of either. Only `status.py` and `rpc_details.py` know gRPC.
Source: proto/lograft/v1; docs/storage_format.md.
"""

from __future__ import annotations
