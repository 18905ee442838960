# SPDX-License-Identifier: Apache-2.0
"""The public gRPC API of a broker, one module or package for each service.

Services: `log_service` (Produce, Fetch, Append, Read, ListOffsets, DeleteRecords, DescribeProducers, InitProducer), `metadata_service`
(GetCluster, WatchCluster), `admin_service` (calls that the active controller answers, ExportMetadata included) with
`log_directory_calls` (calls that a broker answers about its own log directories), `health`.

Shared: `listener` (the gRPC server), `calls` and `status` (requests, answers, failures), `parts` (the parts of a broker that services
use), `forward` (calls that go to the leader of a partition), `connections` (ends TCP connections).
"""
