# SPDX-License-Identifier: Apache-2.0
"""What both ends of gRPC in Python share: HTTP/2, what gRPC adds to it, and the socket of a connection.

Clients and servers use this package, and it imports nothing of either. Pure modules (no clock, no I/O, no asyncio, no gRPC
library): `http2`, `grpc_wire`. Source: docs/grpc.md; ADR 30.
"""
