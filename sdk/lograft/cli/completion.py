# SPDX-License-Identifier: Apache-2.0
"""Completes names that the cluster knows: topics, groups, ingests, configs.

A shell waits for it between two keys. So it asks one broker that answers at once, or completes nothing, and never says a word.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

import typer

from lograft.cli.options import DEFAULT_BOOTSTRAP

if TYPE_CHECKING:
    from lograft.admin import Admin

CONNECT_LIMIT_S: Final = 0.3
"""Seconds that the first broker may take to accept a connection."""

ASK_LIMIT_MS: Final = 1_000
"""Milliseconds for the answer."""


def complete_topic(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the topics that begin with what is there."""
    return _ask(ctx, incomplete, lambda admin: (each.topic for each in admin.list_topics()))


def complete_partition(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return topics, and behind a colon the partitions of a topic."""
    topic, colon, _ = incomplete.partition(":")
    if not colon:
        return complete_topic(ctx, incomplete)
    return _ask(
        ctx,
        incomplete,
        lambda admin: (f"{topic}:{number}" for number in range(admin.describe_topic(topic).partition_count)),
    )


def complete_group(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the groups that begin with what is there."""
    return _ask(ctx, incomplete, lambda admin: (each.group for each in admin.list_groups().groups))


def complete_ingest(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the ingests that begin with what is there."""
    return _ask(ctx, incomplete, lambda admin: (each.ingest_id for each in admin.list_ingests().ingests))


def complete_broker(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the ids of brokers that begin with what is there."""
    return _ask(ctx, incomplete, lambda admin: (str(each.broker_id) for each in admin.describe_cluster().brokers))


def complete_config(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of the configs that topics can have."""
    return _ask(ctx, incomplete, _config_names)


def complete_config_value(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of the configs with an equals sign."""
    return _ask(ctx, incomplete, lambda admin: (f"{name}=" for name in _config_names(admin)))


def _config_names(admin: Admin) -> Iterable[str]:
    from lograft.types import ConfigResource

    cluster = ConfigResource.cluster()
    return admin.describe_configs([cluster])[cluster]


def _ask(ctx: typer.Context, incomplete: str, find: Callable[[Admin], Iterable[str]]) -> list[str]:
    bootstrap = ctx.params.get("bootstrap") or os.environ.get("LOGRAFT_BOOTSTRAP") or DEFAULT_BOOTSTRAP
    try:
        host, _, port = str(bootstrap).split(",")[0].rpartition(":")
        # Before gRPC is loaded, which takes longer.
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_LIMIT_S).close()
        from lograft.admin import Admin

        with Admin(bootstrap, request_timeout_ms=ASK_LIMIT_MS) as admin:
            return sorted(name for name in find(admin) if name.startswith(incomplete))
    except Exception:
        # Whatever it is, a message between two keys would only harm.
        return []
