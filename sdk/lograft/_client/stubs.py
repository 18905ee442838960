# SPDX-License-Identifier: Apache-2.0
"""The methods of the services on a channel.

gRPC is loaded at the first use, so that the modules of calls can be imported without it: a command that prints its help, or a
program that only imports a client's class, does not wait for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import grpc.aio

    # Only the stubs for type checkers have these classes.
    from lograft.v1.admin_pb2_grpc import AdminServiceAsyncStub
    from lograft.v1.group_pb2_grpc import GroupServiceAsyncStub
    from lograft.v1.ingest_pb2_grpc import IngestServiceAsyncStub
    from lograft.v1.log_pb2_grpc import LogServiceAsyncStub


def admin_service(channel: grpc.aio.Channel) -> AdminServiceAsyncStub:
    """Return the methods of `AdminService`."""
    from lograft.v1.admin_pb2_grpc import AdminServiceStub

    return AdminServiceStub(channel)


def group_service(channel: grpc.aio.Channel) -> GroupServiceAsyncStub:
    """Return the methods of `GroupService`."""
    from lograft.v1.group_pb2_grpc import GroupServiceStub

    return GroupServiceStub(channel)


def ingest_service(channel: grpc.aio.Channel) -> IngestServiceAsyncStub:
    """Return the methods of `IngestService`."""
    from lograft.v1.ingest_pb2_grpc import IngestServiceStub

    return IngestServiceStub(channel)


def log_service(channel: grpc.aio.Channel) -> LogServiceAsyncStub:
    """Return the methods of `LogService`."""
    from lograft.v1.log_pb2_grpc import LogServiceStub

    return LogServiceStub(channel)
