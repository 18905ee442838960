# SPDX-License-Identifier: Apache-2.0
"""The client side of ingests, on one event loop: who coordinates one, its calls, its life, and rounds of a repeated one.

`lograft.ingest`, `lograft.transaction` and their twins in `lograft.aio` are what programs use. Records are staged by a producer with
the identity of an attempt (`_producer.staging`).
Source: docs/ingest.md.
"""
