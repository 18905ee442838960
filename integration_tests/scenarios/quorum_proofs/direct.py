# SPDX-License-Identifier: Apache-2.0
"""Calls to one voter, without a broker that would find the leader. They show what a client of a deposed leader would see.

Owns the channel and the requests. A call returns a future, so it can be sent to a process that does not run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import grpc
from lograft.v1 import admin_pb2
from lograft.v1.admin_pb2_grpc import AdminServiceStub
from lograft.wire.codes import ErrorCode
from lograft.wire.status import parse_rpc_error

from integration_tests.harness.load.metadata_load import CONFIG

CONNECT_TIMEOUT_S = 10.0
PAGE_TOPICS = 1_000
Response = admin_pb2.DescribeConfigsResponse | admin_pb2.AlterConfigsResponse
OPTIONS = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The result of a call: a value, or the reason without one.

    Attributes:
        value: the number that a register shows, or that was written; None: no answer, or a refusal.
        refusal: name of the reason if there is no value.
        is_certain: True for a refusal that the server gave and that was not OUTCOME_UNKNOWN.
    """

    value: int | None = None
    refusal: str = ""
    is_certain: bool = True


class Voter:
    """A connection to the AdminService of one voter.

    Args:
        address: `host:port` of that service.
    """

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address, options=OPTIONS)
        self._stub = AdminServiceStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the connection. Calls under way fail."""
        self._channel.close()

    def connect(self) -> None:
        """Wait for the connection, so that later calls are sent at once."""
        grpc.channel_ready_future(self._channel).result(timeout=CONNECT_TIMEOUT_S)

    def read(self, topic: str, *, timeout_s: float) -> Call:
        """Read a register."""
        request = admin_pb2.DescribeConfigsRequest(resources=[_resource(topic)])
        return Call(self._stub.DescribeConfigs.future(request, timeout=timeout_s).result, None)

    def write(self, topic: str, value: int, *, timeout_s: float) -> Call:
        """Write a register."""
        change = admin_pb2.ConfigChange(name=CONFIG, value=str(value))
        changes = admin_pb2.ResourceConfigChanges(resource=_resource(topic), changes=[change])
        request = admin_pb2.AlterConfigsRequest(resources=[changes])
        return Call(self._stub.AlterConfigs.future(request, timeout=timeout_s).result, value)

    def topics(self, *, timeout_s: float) -> dict[str, bytes]:
        """Return all topics with their ids. Raises grpc.RpcError."""
        found: dict[str, bytes] = {}
        token = ""
        while True:
            request = admin_pb2.ListTopicsRequest(page_size=PAGE_TOPICS, page_token=token)
            answer = self._stub.ListTopics(request, timeout=timeout_s)
            found |= {each.topic: each.topic_id for each in answer.topics}
            token = answer.next_page_token
            if not token:
                return found

    def registers(self, topics: Sequence[str], *, timeout_s: float) -> bytes:
        """Return all configs of some topics as bytes, which are equal exactly if the configs are. Raises grpc.RpcError."""
        request = admin_pb2.DescribeConfigsRequest(resources=[_resource(topic) for topic in topics])
        answer = self._stub.DescribeConfigs(request, timeout=timeout_s)
        return b"".join(each.SerializeToString(deterministic=True) for each in answer.resources)

    def describe(self, topic: str, *, timeout_s: float) -> bytes:
        """Return a topic with its partitions and configs as bytes, which are equal exactly if the topic is."""
        answer = self._stub.DescribeTopic(admin_pb2.DescribeTopicRequest(topic=topic), timeout=timeout_s)
        return answer.topic.SerializeToString(deterministic=True) + b"".join(
            entry.SerializeToString(deterministic=True) for entry in answer.configs
        )

    def epoch(self, *, timeout_s: float) -> tuple[int, int | None]:
        """Return quorum epoch and leader as this voter sees them. Raises grpc.RpcError."""
        answer = self._stub.DescribeQuorum(admin_pb2.DescribeQuorumRequest(), timeout=timeout_s)
        return answer.quorum_epoch, answer.leader_id if answer.HasField("leader_id") else None


class Call:
    """A call under way; `result` waits for its end."""

    def __init__(self, result: Callable[[], Response], written: int | None) -> None:
        self._result = result
        self._written = written

    def answer(self) -> Answer:
        """Wait for the end of the call, which its own deadline bounds."""
        try:
            response = self._result()
        except grpc.RpcError as error:
            status = parse_rpc_error(error)
            if status.code is not None:
                return Answer(refusal=status.code.name, is_certain=status.code is not ErrorCode.OUTCOME_UNKNOWN)
            return Answer(refusal=error.code().name, is_certain=False)
        if self._written is not None:
            return Answer(value=self._written)
        assert isinstance(response, admin_pb2.DescribeConfigsResponse), f"unexpected {response}"
        (resource,) = response.resources
        return Answer(value=register_value({entry.name: entry.value for entry in resource.configs}))


def register_value(configs: dict[str, str]) -> int:
    """Return the number of the last write that a register's configs show."""
    return int(configs[CONFIG] or 0)


def _resource(topic: str) -> admin_pb2.ConfigResource:
    return admin_pb2.ConfigResource(type=admin_pb2.CONFIG_RESOURCE_TYPE_TOPIC, name=topic)
