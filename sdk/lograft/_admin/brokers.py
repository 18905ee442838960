# SPDX-License-Identifier: Apache-2.0
"""The admin calls about brokers.

This module owns paging and the conversion of values. It must not hold state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lograft._admin.calls import AdminCalls
from lograft._client.metadata import BrokerNode
from lograft.errors import UsageError
from lograft.types import BrokerDescription, BrokerState, BrokerStatus, ClusterDescription
from lograft.v1 import admin_pb2

PAGE_BROKERS: Final = 1_000
"""Brokers in one page, and in one request that names brokers."""

_STATES: Final = {
    admin_pb2.BROKER_STATE_REGISTERED: BrokerState.REGISTERED,
    admin_pb2.BROKER_STATE_ACTIVE: BrokerState.ACTIVE,
    admin_pb2.BROKER_STATE_SHUTTING_DOWN: BrokerState.SHUTTING_DOWN,
    admin_pb2.BROKER_STATE_FENCED: BrokerState.FENCED,
}


async def describe_brokers(calls: AdminCalls, broker_ids: Sequence[int] | None = None) -> list[BrokerStatus]:
    """Describe brokers as the active controller knows them, ordered by id.

    Args:
        broker_ids: at most 1,000 node ids; the result lacks those that are not registered. None describes all brokers.
    """
    wanted = None if broker_ids is None else [checked_broker_id(each) for each in broker_ids]
    if wanted is not None and len(wanted) > PAGE_BROKERS:
        raise UsageError(f"name at most {PAGE_BROKERS} brokers, or None for all, not {len(wanted)}")
    if wanted == []:
        return []
    found: list[BrokerStatus] = []
    token = ""
    while True:
        request = admin_pb2.DescribeBrokersRequest(broker_ids=wanted, page_size=PAGE_BROKERS, page_token=token)
        response = await calls.ask(lambda stub: stub.DescribeBrokers, request)
        found += map(_status, response.brokers)
        token = response.next_page_token
        if not token:
            return found


async def describe_cluster(calls: AdminCalls) -> ClusterDescription:
    """Describe the brokers of the cluster and the active controller, as one broker sees them."""
    await calls.cluster.fetch_brokers(timeout_ms=calls.timeout_ms)
    view = calls.cluster.view
    return ClusterDescription(
        cluster_id=view.cluster_id or "",
        controller_id=view.controller_id,
        brokers=tuple(map(_description, view.brokers())),
        metadata_offset=view.metadata_offset,
    )


async def remove_broker(calls: AdminCalls, broker_id: int, *, validate_only: bool = False) -> None:
    """End the registration of a broker that is gone for good. Configs of the broker stay, and can be removed separately.

    Args:
        broker_id: node id of the broker.
        validate_only: check the request without changing anything.

    Raises:
        InvalidRequestError: the broker does not exist, is alive, or still has replicas; the message says which.
        OutcomeUnknownError: the answer was lost. Describe the brokers to find out.
    """
    request = admin_pb2.RemoveBrokerRequest(broker_id=checked_broker_id(broker_id), validate_only=validate_only)
    await calls.ask(lambda stub: stub.RemoveBroker, request, may_repeat=validate_only)


def checked_broker_id(broker_id: object) -> int:
    """Return a node id that can be sent.

    Raises:
        UsageError: the value is not a node id.
    """
    if isinstance(broker_id, bool) or not isinstance(broker_id, int) or not 0 <= broker_id < 2**31:
        raise UsageError(f"a broker id is a whole number from 0 to {2**31 - 1}, not {broker_id!r}")
    return broker_id


def _status(message: admin_pb2.BrokerStatus) -> BrokerStatus:
    return BrokerStatus(
        broker_id=message.broker_id,
        state=_STATES.get(message.state, BrokerState.UNKNOWN),
        host=message.host,
        port=message.port,
        rack=message.rack or None,
        broker_epoch=message.broker_epoch,
        incarnation_id=message.incarnation_id,
        log_directory_ids=tuple(message.log_directory_ids),
        offline_log_directory_ids=tuple(message.offline_log_directory_ids),
        min_feature_level=message.min_feature_level,
        max_feature_level=message.max_feature_level,
        replica_count=message.replica_count,
        leader_count=message.leader_count,
        unclean=message.unclean,
        last_heard_age_ms=message.last_heard_age_ms if message.HasField("last_heard_age_ms") else None,
        metadata_offset=message.metadata_offset if message.HasField("metadata_offset") else None,
    )


def _description(broker: BrokerNode) -> BrokerDescription:
    return BrokerDescription(
        broker_id=broker.broker_id, host=broker.host, port=broker.port, rack=broker.rack, fenced=broker.fenced
    )
