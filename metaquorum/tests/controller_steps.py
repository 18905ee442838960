# SPDX-License-Identifier: Apache-2.0
"""Random histories of a controller: commands that may be refused, commits, and new leaderships."""

from __future__ import annotations

from hypothesis import strategies as st

from metaquorum.controller.commands import (
    AllocateProducerIds,
    AlterConfigs,
    Bootstrap,
    Command,
    DeleteTopic,
    ElectPreferredLeaders,
    ElectUncleanLeaders,
    ExpireSessions,
    FenceBroker,
    Heartbeat,
    ResourceChanges,
)
from metaquorum.metadata.records import ConfigResource
from metaquorum.tests.controller_world import World, create_topic, register, topic_id

BROKERS = (1, 2, 3)


TOPICS = ("a", "b", "c")


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "register",
                "beat",
                "fence",
                "expire",
                "create",
                "delete",
                "alter",
                "ids",
                "bootstrap",
                "rebalance",
                "unclean",
                "commit",
                "take_over",
                "wait",
            ]
        ),
        st.integers(0, 2),
        st.integers(0, 6),
        st.booleans(),
    ),
    max_size=60,
)


def command_for(world: World, kind: str, which: int, number: int, switch: bool) -> Command:
    """Return the command of a step, sometimes with a stale epoch."""
    broker_id = BROKERS[which]
    broker = world.controller.image.broker(broker_id)
    epoch = number if broker is None else broker.broker_epoch
    match kind:
        case "register":
            return register(broker_id, process=broker_id * 10 + number % 2, port=9640 + switch)
        case "beat":
            behind = 0 if number == 0 else world.log_end_offset
            return Heartbeat(
                broker_id=broker_id,
                broker_epoch=epoch,
                metadata_offset=behind,
                want_fence=number == 1,
                want_shutdown=switch and number > 3,
            )
        case "fence":
            return FenceBroker(broker_id=broker_id, broker_epoch=epoch)
        case "expire":
            return ExpireSessions()
        case "create":
            configs = {"segment.ms": str(number)} if switch and number else {}
            name = TOPICS[which]
            fresh = topic_id(f"{name}{world.log_end_offset}")
            return create_topic(name, topic_id=fresh, partition_count=number, configs=configs)
        case "delete":
            return DeleteTopic(topic=TOPICS[which])
        case "alter":
            resource = (ConfigResource.TOPIC, ConfigResource.BROKER, ConfigResource.CLUSTER)[number % 3]
            name = {ConfigResource.TOPIC: TOPICS[which], ConfigResource.BROKER: str(broker_id)}.get(resource, "")
            policy = None if switch and number < 3 else "ack" if switch else "none"
            changes = ResourceChanges(resource=resource, name=name, changes=(("flush.policy", policy),))
            return AlterConfigs(resources=(changes,))
        case "rebalance":
            return ElectPreferredLeaders()
        case "unclean":
            return ElectUncleanLeaders()
        case "ids":
            return AllocateProducerIds(broker_id=broker_id, broker_epoch=epoch)
        case _:
            return Bootstrap()


def step(world: World, kind: str, which: int, number: int, switch: bool) -> None:
    """Take one step of a history."""
    if kind == "commit":
        world.commit()
    elif kind == "take_over":
        world.take_over()
    elif kind == "wait":
        world.now_ms += 700 * number
        world.pass_over(number % 2)
    elif switch and kind in ("create", "delete", "expire"):
        world.run(command_for(world, kind, which, number, switch))
    else:
        world.append(command_for(world, kind, which, number, switch))


def prepared() -> World:
    """Return a world in which most steps do something: three live brokers and one topic, the last one uncommitted."""
    world = World()
    for broker_id in BROKERS:
        world.start_broker(broker_id)
    world.append(create_topic(TOPICS[0], partition_count=3, configs={"segment.ms": "1"}))
    return world
