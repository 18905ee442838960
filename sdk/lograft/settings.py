# SPDX-License-Identifier: Apache-2.0
"""Settings of the clients, which check them at construction, and every limit that has no setting.

This module owns bounds and defaults. The docstring of each blocking client explains its settings. It must not do I/O.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, cast

from lograft.errors import InvalidAcksError, InvalidSettingError
from lograft.types import Acks, Position
from lograft.wire.keepalive import LIVENESS_RANGE_MS

PARTITIONERS: Final = ("crc32c", "murmur2", "sticky")
"""Names of the partitioners."""
DEFAULT_PORT: Final = 9640
"""Port of a broker's public listener."""
MAX_BATCH_BYTES: Final = 8 * 1024 * 1024
"""Bytes of the largest batch that the format allows, header included."""
DEFAULT_BATCH_BYTES: Final = 1024 * 1024
"""What topics take by default. Client and broker work for each batch: with 256 KiB, both take some 1.6 times the processor time for
records of 1 KB, and the batches in flight of a partition are too few bytes to keep both busy."""
MAX_IN_FLIGHT_BATCHES: Final = 16
"""Batches of one producer that a broker remembers for each partition, so the most that may be unacknowledged at once."""
REQUEST_TIMEOUT_MS: Final = 30_000
"""Milliseconds that a unary call may take, all attempts together, unless the caller sets another time."""
UNREACHABLE_TIMEOUT_MS: Final = 30_000
"""Milliseconds without anything from any assigned partition after which a poll raises, unless the caller sets another time."""
UNREACHABLE_RANGE_MS: Final = (100, 86_400_000)
"""Smallest and largest value of `unreachable_timeout_ms`, both inclusive."""
ISOLATIONS: Final = ("committed", "committed-together")
"""Names of the isolations of a consumer."""
ISOLATION_TIMEOUT_MS: Final = 30_000
"""Milliseconds for which a partition waits for the rest of a decision before a poll raises, unless the caller sets another time."""
ISOLATION_TIMEOUT_RANGE_MS: Final = (100, 86_400_000)
"""Smallest and largest value of `isolation_timeout_ms`, both inclusive."""
CONNECTION_LIVENESS_MS: Final = 12_000
"""Milliseconds without a byte from the broker after which a connection has failed, unless the caller sets another time."""
CONNECT_TIMEOUT_MS: Final = 2_000
"""Milliseconds that a client waits for one broker address before it tries the next one."""
STREAM_OPEN_TIMEOUT_MS: Final = 15_000
"""Milliseconds that a client waits for the broker's `opened` on a new stream."""
STREAM_SILENCE_MS: Final = 15_000
"""Milliseconds after which a client reopens a stream that owes it a message and sends none."""
RETRY_BACKOFF_MS: Final = 50
"""Milliseconds before the first retry. Each further retry waits twice as long, with jitter."""
MAX_RETRY_BACKOFF_MS: Final = 1_000
"""Longest pause between two attempts, in milliseconds."""
LAST_TRY_MS: Final = 250
"""Milliseconds that must be left for another attempt of a refused call that must not be carried out twice."""
MAX_TOPICS_PER_CALL: Final = 10_000
"""Topics that one GetCluster request may name."""
UNKNOWN_TOPIC_WAIT_MS: Final = 1_000
"""Milliseconds for which a client asks again for a topic that the broker does not know. The topic may be new."""
MAX_REPORTED_TROUBLES: Final = 100
"""Partitions that an `UnreachableError` names. It only counts the others."""
TROUBLE_LOG_MS: Final = 30_000
"""Shortest time between two warnings about partitions from which nothing comes, in milliseconds."""
MAX_REPORTED_FAILURES: Final = 1_000
"""Failed batches that a producer remembers for the next flush. It only counts the others."""

STALLED_MS: Final = 2_000
"""Milliseconds that a producer waits for a due answer before it asks other brokers for the leader."""

FETCH_STALLED_MS: Final = 4_500
"""The same for a consumer. A broker without records sends it a mark every three seconds."""

STALL_REFRESH_MS: Final = 500
"""Milliseconds between two such questions to other brokers while a broker owes an answer."""

FOLLOWER_RETRY_MS: Final = 5_000
"""Milliseconds for which a consumer reads a partition from its leader after a follower refused it or failed."""

MAX_GROUP_BYTES: Final = 255
"""Bytes of UTF-8 of the longest group id and instance id."""

AUTO_COMMIT_INTERVAL_MS: Final = 5_000
"""Milliseconds between two automatic commits, unless the caller sets another time."""

PROCESSING_LIMIT_MS: Final = 300_000
"""Milliseconds that an application may take between two polls, unless it sets another time."""

PROCESSING_LIMIT_RANGE_MS: Final = (1_000, 86_400_000)
"""Smallest and largest value of `processing_limit_ms`, both inclusive."""

INGEST_COMMIT_TIMEOUT_MS: Final = 300_000
"""Milliseconds for which `Ingest.commit` waits until everything is published, unless the caller sets another time."""

MAX_TRANSACTION_IDS: Final = 64
"""Transaction ids that one producer may use. Each has connections of its own."""

ASSIGNORS: Final = ("uniform", "range")
"""Names of assignors that a member may prefer."""

DEFAULT_CLIENT_ID: Final = "lograft-python"
"""What descriptions of groups show for a member whose program has no `client_id`."""

MAX_CLIENT_ID_CHARACTERS: Final = 249
"""Characters of the longest client id."""

MAX_RACK_CHARACTERS: Final = 249
"""Characters of the longest rack name."""

OLD_LEADER_GRACE_MS: Final = 500
"""Milliseconds that a producer leaves a former leader to send its remaining receipts and to report that it no longer leads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """How a client finds the cluster, and how long it waits.

    Attributes:
        addresses: host:port of some brokers; one that answers is enough.
        cluster_id: the id that the cluster must have; None accepts any cluster.
        connection_liveness_ms: milliseconds without a byte from the broker after which a connection has failed, 4,000 to
            60,000. The client sends a ping after a quarter of this time.
        request_timeout_ms: milliseconds that a unary call may take, all attempts together, 1 to 3,600,000.
        client_id: name of the program, which brokers get at the front of gRPC's user agent; None for none.
    """

    addresses: tuple[str, ...]
    cluster_id: str | None = None
    connection_liveness_ms: int = CONNECTION_LIVENESS_MS
    request_timeout_ms: int = REQUEST_TIMEOUT_MS
    client_id: str | None = None

    def __post_init__(self) -> None:
        check_client_id(self.client_id)
        check_range("request_timeout_ms", self.request_timeout_ms, 1, 3_600_000)
        check_range("connection_liveness_ms", self.connection_liveness_ms, *LIVENESS_RANGE_MS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """Settings of a producer. The docstring of `lograft.Producer` explains them."""

    acks: Acks = Acks.ALL
    idempotent: bool = True
    linger_ms: int = 5
    batch_bytes: int = DEFAULT_BATCH_BYTES
    max_in_flight: int = 8
    buffer_bytes: int = 64 * 1024 * 1024
    codec: str = "none"
    delivery_timeout_ms: int = 120_000
    exit_flush_ms: int = 5_000
    partitioner: str | Callable[[str, bytes, int], int] = "crc32c"

    def __post_init__(self) -> None:
        check_range("linger_ms", self.linger_ms, 0, 60_000)
        check_range("batch_bytes", self.batch_bytes, 1_024, MAX_BATCH_BYTES)
        check_range("max_in_flight", self.max_in_flight, 1, MAX_IN_FLIGHT_BATCHES)
        check_range("buffer_bytes", self.buffer_bytes, self.batch_bytes, 16 * 1024**3)
        check_range("delivery_timeout_ms", self.delivery_timeout_ms, 1, 86_400_000)
        check_range("exit_flush_ms", self.exit_flush_ms, 0, 600_000)
        if not callable(self.partitioner) and self.partitioner not in PARTITIONERS:
            raise InvalidSettingError(
                f'partitioner is "crc32c", "murmur2", "sticky" or a function (topic, key, partition_count) -> partition, '
                f"not {self.partitioner!r}"
            )
        if self.codec not in ("none", "zstd"):
            raise InvalidSettingError(f'codec is "none" or "zstd", not {self.codec!r}')
        if self.delivery_timeout_ms < self.linger_ms:
            raise InvalidSettingError(
                f"delivery_timeout_ms ({self.delivery_timeout_ms}) is below linger_ms ({self.linger_ms})"
            )

    @property
    def is_idempotent(self) -> bool:
        """True when batches carry a producer id and sequence. Never with acks="none", where lost batches leave gaps in the sequence."""
        return self.idempotent and self.acks is not Acks.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """Settings of a consumer. The docstring of `lograft.Consumer` explains them."""

    prefetch_bytes: int = 16 * 1024 * 1024
    max_chunk_bytes: int = 1024 * 1024
    on_out_of_range: str = "error"
    check_crcs: bool = True
    client_rack: str | None = None
    unreachable_timeout_ms: int = UNREACHABLE_TIMEOUT_MS
    isolation: str = "committed"
    isolation_timeout_ms: int = ISOLATION_TIMEOUT_MS

    def __post_init__(self) -> None:
        check_range("prefetch_bytes", self.prefetch_bytes, 1_024, 1024**3)
        check_range("max_chunk_bytes", self.max_chunk_bytes, 1_024, 4 * 1024 * 1024)
        check_range("unreachable_timeout_ms", self.unreachable_timeout_ms, *UNREACHABLE_RANGE_MS)
        check_range("isolation_timeout_ms", self.isolation_timeout_ms, *ISOLATION_TIMEOUT_RANGE_MS)
        if self.isolation not in ISOLATIONS:
            raise InvalidSettingError(f'isolation is "committed" or "committed-together", not {self.isolation!r}')
        if self.on_out_of_range not in ("error", "earliest", "latest"):
            raise InvalidSettingError(
                f'on_out_of_range is "error", "earliest" or "latest", not {self.on_out_of_range!r}'
            )
        if self.client_rack is not None and not 1 <= len(self.client_rack) <= MAX_RACK_CHARACTERS:
            raise InvalidSettingError(
                f"client_rack has {len(self.client_rack)} characters; it must have 1 to {MAX_RACK_CHARACTERS}, or be left out"
            )


Reset = Position | timedelta | None
"""Where to begin without a committed offset: a position, so long ago, or (None) nowhere: that is an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Settings of a consumer with a group. The docstring of `lograft.Consumer` explains them."""

    group: str
    instance_id: str | None = None
    auto_commit: bool = True
    auto_commit_interval_ms: int = AUTO_COMMIT_INTERVAL_MS
    reset: Reset = Position.EARLIEST
    assignor: str | None = None
    processing_limit_ms: int = PROCESSING_LIMIT_MS

    def __post_init__(self) -> None:
        _check_name("group", self.group)
        if self.instance_id is not None:
            _check_name("instance_id", self.instance_id)
        check_range("auto_commit_interval_ms", self.auto_commit_interval_ms, 100, 86_400_000)
        check_range("processing_limit_ms", self.processing_limit_ms, *PROCESSING_LIMIT_RANGE_MS)
        if self.assignor is not None and self.assignor not in ASSIGNORS:
            raise InvalidSettingError(f'assignor is "uniform" or "range", not {self.assignor!r}')


def parse_reset(reset: object) -> Reset:
    """Return the reset policy for "earliest", "latest", "none", or a `timedelta`.

    Raises:
        InvalidSettingError: it is something else, or the duration is negative.
    """
    if isinstance(reset, timedelta) and reset >= timedelta(0):
        return reset
    if isinstance(reset, Position):
        return reset
    if reset == "none":
        return None
    if isinstance(reset, str) and reset in ("earliest", "latest"):
        return Position(reset)
    raise InvalidSettingError(f'reset is "earliest", "latest", "none" or a timedelta of at least 0, not {reset!r}')


def parse_group(
    group: str | None,
    *,
    instance_id: str | None,
    auto_commit: bool,
    auto_commit_interval_ms: int,
    reset: object,
    assignor: str | None,
    processing_limit_ms: int,
) -> GroupSettings | None:
    """Return the settings of a consumer's group; None without a group.

    Raises:
        InvalidSettingError: a setting is not valid, or belongs to a group and none is given.
    """
    policy = parse_reset(reset)
    if group is None:
        for name, value in (("instance_id", instance_id), ("assignor", assignor)):
            if value is not None:
                raise InvalidSettingError(f"{name} is a setting of groups: give group as well")
        return None
    return GroupSettings(
        group=group,
        instance_id=instance_id,
        auto_commit=auto_commit,
        auto_commit_interval_ms=auto_commit_interval_ms,
        reset=policy,
        assignor=assignor,
        processing_limit_ms=processing_limit_ms,
    )


def _check_name(name: str, value: object) -> None:
    if not isinstance(value, str) or not 1 <= len(value.encode()) <= MAX_GROUP_BYTES:
        raise InvalidSettingError(f"{name} is a text of 1 to {MAX_GROUP_BYTES} bytes in UTF-8, not {value!r}")


def parse_acks(value: object) -> Acks:
    """Return the caller's acks as the enum.

    Raises:
        InvalidAcksError: the value is not "all", "leader" or "none".
    """
    if isinstance(value, Acks):
        return value
    if isinstance(value, str):
        for acks in Acks:
            if acks.value == value:
                return acks
    raise InvalidAcksError(f'acks is "all", "leader" or "none", not {value!r}')


def parse_bootstrap(
    bootstrap: str | Sequence[str],
    cluster_id: str | None,
    *,
    connection_liveness_ms: int = CONNECTION_LIVENESS_MS,
    request_timeout_ms: int = REQUEST_TIMEOUT_MS,
    client_id: str | None = None,
) -> ClientSettings:
    """Return the settings for "host:port,host:port" or a list of such addresses. The port may be left out.

    Raises:
        InvalidSettingError: no address is given, an address is malformed, or a number is out of range.
    """
    _check_bootstrap(bootstrap)
    parts = bootstrap.split(",") if isinstance(bootstrap, str) else list(bootstrap)
    addresses = tuple(_parse_address(part.strip()) for part in parts if part.strip())
    if not addresses:
        raise InvalidSettingError(f'bootstrap names no address: {bootstrap!r}; give "host:port"')
    if cluster_id == "":
        raise InvalidSettingError("cluster_id is empty; leave it out to accept any cluster")
    return ClientSettings(
        addresses=addresses,
        cluster_id=cluster_id,
        connection_liveness_ms=connection_liveness_ms,
        request_timeout_ms=request_timeout_ms,
        client_id=client_id,
    )


def _parse_address(text: str) -> str:
    host, separator, port = text.rpartition(":")
    if not separator or (text.startswith("[") and text.endswith("]")):
        host, port = text, str(DEFAULT_PORT)
    is_bare_ipv6 = ":" in host and not (host.startswith("[") and host.endswith("]"))
    if not host or is_bare_ipv6 or not port.isdecimal() or not 1 <= int(port) <= 65_535:
        raise InvalidSettingError(
            f'{text!r} is not an address; give "host:port" or "[ipv6]:port" with a port from 1 to 65535'
        )
    return f"{host}:{int(port)}"


def check_range(name: str, value: object, low: int, high: int) -> None:
    """Check that a value is a whole number in a range.

    Args:
        name: name of the value, for the message.
        value: what the caller gave.
        low: smallest value, inclusive.
        high: largest value, inclusive.

    Raises:
        InvalidSettingError: the value is not a whole number, or is out of range.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidSettingError(f"{name} is a whole number, not {value!r}")
    if not low <= value <= high:
        raise InvalidSettingError(f"{name} is {value}; it must be between {low} and {high}")


def check_client_id(client_id: object) -> None:
    """Check the name of a program. Other characters could end the header in which it travels.

    Raises:
        InvalidSettingError: the name has another type, length or character.
    """
    if client_id is None:
        return
    if (
        not isinstance(client_id, str)
        or len(client_id) > MAX_CLIENT_ID_CHARACTERS
        or not re.fullmatch(r"[A-Za-z0-9._-]+", client_id)
    ):
        raise InvalidSettingError(
            f"client_id is {client_id!r}; it must have 1 to {MAX_CLIENT_ID_CHARACTERS} letters, digits, dots, underscores "
            "and hyphens, or be left out"
        )


def _check_bootstrap(given: object) -> None:
    """Refuse wrong types that callers without a type checker pass as addresses."""
    if isinstance(given, Mapping):
        raise InvalidSettingError(
            "settings are keyword arguments here, not a dictionary: pass the addresses first, as in "
            'Producer("host:9640", linger_ms=5); "bootstrap.servers" is that first argument'
        )
    is_right = isinstance(given, Iterable) and not isinstance(given, bytes)
    if not is_right or not all(isinstance(each, str) for each in cast("Iterable[object]", given)):
        raise InvalidSettingError(f'bootstrap is "host:port" as text, or several, not {given!r}')


PRODUCER_DEFAULTS: Final = ProducerSettings()
"""The defaults of both producers."""

CONSUMER_DEFAULTS: Final = ConsumerSettings()
"""The defaults of both consumers."""
