# SPDX-License-Identifier: Apache-2.0
"""The parts of an admin operation agree: RPC, servers, SDK and command line (ADR 20)."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import grpc
import lograft
import pytest
import typer
from lograft import aio
from lograft._admin import brokers, configs, features, log_directories, metadata_export, partitions, quorum, topics
from lograft.cli.admin_command import VERBS
from lograft.cli.app import make_app
from lograft.v1 import admin_pb2

from brokerd.api.admin_service import AdminService
from brokerd.api.log_directory_calls import LogDirectoryCalls
from metaquorum.controller_service.admin_grpc import admin_handler
from metaquorum.controller_service.admin_operations import OPERATIONS, REQUEST_TYPES, RESPONSE_TYPES
from metaquorum.controller_service.operation import Change, Export, Query

RPCS = [method.name for method in admin_pb2.DESCRIPTOR.services_by_name["AdminService"].methods]

OF_OTHER_SERVICES = {
    "describe_cluster": "GetCluster of MetadataService",
    "list_offsets": "LogService",
    "delete_records": "LogService",
    "describe_producers": "LogService",
    "list_groups": "GroupService",
    "describe_groups": "GroupService",
    "delete_groups": "GroupService",
    "group_offsets": "FetchOffsets of GroupService, and LogService for the lag",
    "alter_group_offsets": "GroupService",
    "reset_group_offsets": "GroupService and LogService",
    "delete_group_offsets": "GroupService",
    "list_ingests": "IngestService",
    "describe_ingest": "IngestService",
    "abort_ingest": "IngestService",
    "replace_voter": "RemoveVoter and AddVoter",
}
"""Methods of the SDK that are no RPC of AdminService, and what they use."""

WITHOUT_COMMAND = {
    "list_offsets": "`lograft consume` takes times and positions",
    "delete_records": "a program that knows the offset calls it; retention configs are for people",
}
"""Methods of the SDK that have no command, and why."""


def _verbs(client: type) -> dict[str, Any]:
    return {name: each for name, each in vars(client).items() if not name.startswith("_") and name != "close"}


def _snake_case(name: str) -> str:
    return re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower()


def test_each_rpc_is_a_row_of_the_servers() -> None:
    """The table has each RPC of the descriptor and no other, and the messages of each fit its kind."""
    assert OPERATIONS.keys() == set(RPCS)
    for name, operation in OPERATIONS.items():
        if isinstance(operation, Export):
            continue
        request, response = REQUEST_TYPES[name].DESCRIPTOR, RESPONSE_TYPES[name].DESCRIPTOR
        assert "cluster_id" in request.fields_by_name, name
        if isinstance(operation, Change):
            assert "metadata_offset" in response.fields_by_name, name
        if isinstance(operation, Query):
            assert "min_metadata_offset" in request.fields_by_name, name


@pytest.mark.parametrize("rpc", RPCS)
def test_each_rpc_is_served_by_brokers_and_voters(rpc: str) -> None:
    """Each gRPC service has a handler for it."""
    nothing = cast("Any", None)
    own = LogDirectoryCalls(nothing, nothing, node_id=1, cluster_id="")
    details = cast("grpc.HandlerCallDetails", SimpleNamespace(method=f"/lograft.v1.AdminService/{rpc}"))
    for handler in (AdminService(nothing, nothing, own, cluster_id="").handler(), admin_handler(nothing)):
        assert handler.service(details) is not None


@pytest.mark.parametrize("rpc", RPCS)
def test_each_rpc_has_a_verb_of_its_name(rpc: str) -> None:
    """Both admin clients have the method with the same signature and docstring, and a module of `_admin` sends the request."""
    verb = _snake_case(rpc)
    blocking, asynchronous = _verbs(lograft.Admin)[verb], _verbs(aio.Admin)[verb]
    assert inspect.signature(blocking) == inspect.signature(asynchronous)
    assert blocking.__doc__ == asynchronous.__doc__
    modules: tuple[ModuleType, ...] = (
        topics,
        configs,
        features,
        partitions,
        brokers,
        quorum,
        log_directories,
        metadata_export,
    )
    (home,) = [module for module in modules if blocking.__module__ == module.__name__]
    assert f"stub.{rpc}" in inspect.getsource(home)


def test_each_verb_is_an_rpc_or_has_a_reason() -> None:
    """Every method has its RPC or is a known exception, and both clients have the same methods."""
    verbs = _verbs(lograft.Admin).keys()
    assert verbs == _verbs(aio.Admin).keys()
    assert verbs - {_snake_case(rpc) for rpc in RPCS} == OF_OTHER_SERVICES.keys()


def test_each_verb_has_a_command_or_a_reason() -> None:
    """The command line has a command for each method of the SDK. The exceptions are named and necessary."""
    with_command = {
        verb for command in _commands(typer.main.get_command(make_app())) for verb in VERBS.get(command, ())
    }
    assert _verbs(lograft.Admin).keys() - with_command == WITHOUT_COMMAND.keys()


def _commands(group: Any) -> Iterator[Any]:
    """Yield the functions of all commands of a group and its groups. typer has them in a wrapper."""
    for command in group.commands.values():
        if hasattr(command, "commands"):
            yield from _commands(command)
        else:
            yield command.callback.__wrapped__
