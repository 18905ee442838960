# SPDX-License-Identifier: Apache-2.0
"""The public gRPC API of a broker, one module or package for each service.

`log_service` (Produce, Fetch, Append, Read, ListOffsets, DeleteRecords, InitProducer), `metadata_service` (GetCluster,
WatchCluster), `admin_service` (what goes on to the active controller, ExportMetadata included) with `log_directory_calls` (what a
broker answers about its own log directories), `health`.

What they share: `listener` (the gRPC server), `calls` and `status` (how a call is taken in, and how it fails), `parts` (one broker as
its services see it), `forward` and `forwarded` (calls that go on to the broker that leads a partition), `connections` (ends TCP
connections).
"""
