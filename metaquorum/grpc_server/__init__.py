# SPDX-License-Identifier: Apache-2.0
"""The gRPC server of brokers and voters, in Python over asyncio.

Frames, windows and what gRPC adds to them are in `lograft._grpc`. Handlers are those of `grpc`, so generated code registers
services here as it does at `grpc.aio`.
Source: docs/grpc.md; ADR 30.
"""
