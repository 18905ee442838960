# SPDX-License-Identifier: Apache-2.0
"""Brokers: requests of AdminService to commands, and the active controller's knowledge of brokers to answers.

Owns pages and the translation. Does not decide the state of a broker.
"""

from __future__ import annotations

from typing import Final

from lograft.v1 import admin_pb2
from lograft.wire.codes import ErrorCode

from metaquorum.controller.brokers import BrokerState, state_of
from metaquorum.controller.commands import RemoveBroker
from metaquorum.controller_service.commit_waiters import CommandError
from metaquorum.controller_service.controller_host import ControllerHost
from metaquorum.controller_service.operation import Member
from metaquorum.metadata.state import BrokerImage

MAX_PAGE_BROKERS: Final = 1_000
"""Brokers on a page, and brokers that a request may name, at most."""

_MAX_TOKEN_DIGITS: Final = 10

_STATES: Final = {
    BrokerState.REGISTERED: admin_pb2.BROKER_STATE_REGISTERED,
    BrokerState.ACTIVE: admin_pb2.BROKER_STATE_ACTIVE,
    BrokerState.SHUTTING_DOWN: admin_pb2.BROKER_STATE_SHUTTING_DOWN,
    BrokerState.FENCED: admin_pb2.BROKER_STATE_FENCED,
}


def remove(request: admin_pb2.RemoveBrokerRequest, _member: Member) -> RemoveBroker:
    """Return the command for a request."""
    return RemoveBroker(broker_id=request.broker_id, validate_only=request.validate_only)


async def describe(
    request: admin_pb2.DescribeBrokersRequest, member: Member, timeout_ms: int
) -> admin_pb2.DescribeBrokersResponse:
    """Return one page of brokers, by ascending id. The token of a page is the last id of the previous page.

    Raises:
        CommandError: INVALID_REQUEST: a size is out of range, or the token is invalid; also as `Member.catch_up`.
    """
    await member.catch_up(request, timeout_ms)
    host = member.host
    if not 0 <= request.page_size <= MAX_PAGE_BROKERS or len(request.broker_ids) > MAX_PAGE_BROKERS:
        raise CommandError(
            ErrorCode.INVALID_REQUEST,
            f"a page has 1 to {MAX_PAGE_BROKERS} brokers (0: {MAX_PAGE_BROKERS}), and a request names at most as many; "
            f"not {request.page_size} and {len(request.broker_ids)}",
        )
    after = _after(request.page_token)
    registered = host.image.brokers
    wanted = set(request.broker_ids) or registered.keys()
    broker_ids = sorted(broker_id for broker_id in wanted if broker_id > after and broker_id in registered)
    page = broker_ids[: request.page_size or MAX_PAGE_BROKERS]
    return admin_pb2.DescribeBrokersResponse(
        brokers=[_status(registered[broker_id], host) for broker_id in page],
        next_page_token=str(page[-1]) if len(page) < len(broker_ids) else "",
        metadata_offset=host.image.metadata_offset,
    )


def _after(token: str) -> int:
    if not token:
        return -1
    if not token.isascii() or not token.isdigit() or len(token) > _MAX_TOKEN_DIGITS:
        raise CommandError(ErrorCode.INVALID_REQUEST, f"{token[:100]!r} is no token of a page; leave it out")
    return int(token)


def _status(broker: BrokerImage, host: ControllerHost) -> admin_pb2.BrokerStatus:
    session = host.session_of(broker)
    counts = host.image.counts
    return admin_pb2.BrokerStatus(
        broker_id=broker.broker_id,
        state=_STATES[state_of(broker, session_lasts=session is not None and session.lasts)],
        host=broker.host,
        port=broker.port,
        rack=broker.rack or "",
        broker_epoch=broker.broker_epoch,
        incarnation_id=broker.incarnation_id,
        log_directory_ids=broker.log_directory_ids,
        offline_log_directory_ids=broker.offline_log_directory_ids,
        min_feature_level=broker.min_feature_level,
        max_feature_level=broker.max_feature_level,
        replica_count=counts.replicas.get(broker.broker_id, 0),
        leader_count=counts.leaders.get(broker.broker_id, 0),
        unclean=broker.unclean,
        last_heard_age_ms=None if session is None else session.age_ms,
        metadata_offset=None if session is None else session.metadata_offset,
    )
