# SPDX-License-Identifier: Apache-2.0
"""What state a broker is in, and the end of its registration.

Owns the names of the states, and when a broker may be removed. Law: a broker is removed only when nothing is heard of it
any more and no partition has a replica on it, so that removing one loses nothing and stops nobody.
Source: KIP-746 (UnregisterBroker); `docs/controller.md` section "Brokers".
"""

from __future__ import annotations

from enum import Enum
from itertools import islice

from lograft.wire.codes import ErrorCode

from metaquorum.controller.appended import AppendedImage
from metaquorum.controller.commands import Decision, Done, RemoveBroker, refuse
from metaquorum.controller.limits import MAX_SWEEP_PARTITIONS
from metaquorum.controller.sessions import Sessions
from metaquorum.metadata.records import RemoveBrokerRecord
from metaquorum.metadata.state import BrokerImage

SHOWN_PARTITIONS = 5
"""Partitions that a refusal names."""


class BrokerState(Enum):
    """State of a registered broker."""

    REGISTERED = "registered"
    """It is heard of and may not lead: it catches up, or asks to be fenced, or its unclean stop is being dealt with."""
    ACTIVE = "active"
    """It may lead."""
    SHUTTING_DOWN = "shutting down"
    """It leaves in an orderly way, and waits for other leaders of its partitions."""
    FENCED = "fenced"
    """It has stopped, or nothing is heard of it."""


def state_of(broker: BrokerImage, *, session_lasts: bool) -> BrokerState:
    """Return the state of a broker.

    Args:
        broker: its registration.
        session_lasts: True while it counts as alive.
    """
    if broker.can_lead:
        return BrokerState.ACTIVE
    if not broker.fenced:
        return BrokerState.SHUTTING_DOWN
    stopped = broker.in_controlled_shutdown or not session_lasts
    return BrokerState.FENCED if stopped else BrokerState.REGISTERED


def remove(image: AppendedImage, sessions: Sessions, command: RemoveBroker, now_ms: int) -> Decision:
    """Decide about the end of a registration. What is set for the broker stays, and can be unset."""
    broker = image.broker(command.broker_id)
    if broker is None:
        return refuse(ErrorCode.INVALID_REQUEST, f"no broker {command.broker_id} is registered")
    if not broker.fenced:
        return refuse(
            ErrorCode.INVALID_REQUEST,
            f"broker {broker.broker_id} lives at {broker.host}:{broker.port}; stop it first",
        )
    hosted = image.counts.replicas.get(broker.broker_id, 0)
    if hosted:
        return refuse(
            ErrorCode.INVALID_REQUEST,
            f"broker {broker.broker_id} has {hosted} replicas ({_examples(image, broker.broker_id)}); "
            "reassign them to other brokers or delete their topics first",
        )
    session = sessions.describe(broker, now_ms)
    if session is not None and session.lasts:
        return refuse(
            ErrorCode.INVALID_REQUEST,
            f"broker {broker.broker_id} was heard of {session.age_ms} ms ago and may live; "
            "stop it, and try again when its session is over",
        )
    record = RemoveBrokerRecord(broker_id=broker.broker_id, broker_epoch=broker.broker_epoch)
    return Decision(response=Done(), records=() if command.validate_only else (record,))


def _examples(image: AppendedImage, broker_id: int) -> str:
    """Return the names of some partitions that a broker has; not all are looked at."""
    partitions = ((topic.topic, partition) for topic in image.topics() for partition in topic.partitions)
    looked_at = islice(partitions, MAX_SWEEP_PARTITIONS)
    names = (f"{topic}:{each.partition}" for topic, each in looked_at if broker_id in each.replicas)
    return ", ".join(islice(names, SHOWN_PARTITIONS)) + ", ..."
