# SPDX-License-Identifier: Apache-2.0
"""The gRPC server of brokers and voters, in Python over asyncio.

`server` accepts connections and finds the handler of each call, `call` is what a handler sees. Frames, windows and what gRPC adds
to them are in `lograft._grpc`. Handlers are those of `grpc`, so generated code registers services here as it does at `grpc.aio`.
Source: docs/grpc.md; ADR 30.
"""
