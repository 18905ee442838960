# SPDX-License-Identifier: Apache-2.0
"""Lograft's Python SDK: produce, consume and administer a log store on a Raft quorum.

This package only names the public classes. Python imports each of them at its first use (PEP 562). So an import of
`lograft.wire` or of the generated stubs loads no client, no thread and no channel.

    from lograft import Admin, Consumer, Producer, TopicPartition
    from lograft import aio          # the same clients for asyncio
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Final

# For programs that use gRPC beside this SDK, whose own clients start none of its threads. gRPC reads this variable when it is
# loaded, and nothing before this line loads it. In a forked child, gRPC's fork handlers restart its threads. Those continue the
# parent's calls and crash the child with SIGSEGV. A program that needs the handlers sets the variable itself.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
# This module registers a hook that must exist before a program forks.
import_module("lograft._client.forks")

if TYPE_CHECKING:
    from lograft import aio as aio
    from lograft import errors as errors
    from lograft.admin import Admin as Admin
    from lograft.consumer import Consumer as Consumer
    from lograft.delivery import Delivery as Delivery
    from lograft.errors import DeliveryError as DeliveryError
    from lograft.errors import LograftError as LograftError
    from lograft.fetched import FetchedBatch as FetchedBatch
    from lograft.ingest import Attempt as Attempt
    from lograft.ingest import Ingest as Ingest
    from lograft.producer import Producer as Producer
    from lograft.transaction import Transaction as Transaction
    from lograft.types import BatchReceipt as BatchReceipt
    from lograft.types import ConfigResource as ConfigResource
    from lograft.types import ConsumerRecord as ConsumerRecord
    from lograft.types import Durability as Durability
    from lograft.types import IngestResult as IngestResult
    from lograft.types import IngestState as IngestState
    from lograft.types import OffsetAndMetadata as OffsetAndMetadata
    from lograft.types import OffsetQuery as OffsetQuery
    from lograft.types import Position as Position
    from lograft.types import RebalanceListener as RebalanceListener
    from lograft.types import RecordReceipt as RecordReceipt
    from lograft.types import SealedAttempt as SealedAttempt
    from lograft.types import TopicPartition as TopicPartition
    from lograft.wire.codes import ErrorCode as ErrorCode

__version__: Final = "0.1.0.dev0"

__all__ = [
    "Admin",
    "Attempt",
    "BatchReceipt",
    "ConfigResource",
    "Consumer",
    "ConsumerRecord",
    "Delivery",
    "DeliveryError",
    "Durability",
    "ErrorCode",
    "FetchedBatch",
    "Ingest",
    "IngestResult",
    "IngestState",
    "LograftError",
    "OffsetAndMetadata",
    "OffsetQuery",
    "Position",
    "Producer",
    "RebalanceListener",
    "RecordReceipt",
    "SealedAttempt",
    "TopicPartition",
    "Transaction",
    "__version__",
    "aio",
    "errors",
]

_HOMES: Final = {
    "Admin": "lograft.admin",
    "Attempt": "lograft.ingest",
    "BatchReceipt": "lograft.types",
    "ConfigResource": "lograft.types",
    "Consumer": "lograft.consumer",
    "ConsumerRecord": "lograft.types",
    "Delivery": "lograft.delivery",
    "DeliveryError": "lograft.errors",
    "Durability": "lograft.types",
    "ErrorCode": "lograft.wire.codes",
    "FetchedBatch": "lograft.fetched",
    "Ingest": "lograft.ingest",
    "IngestResult": "lograft.types",
    "IngestState": "lograft.types",
    "LograftError": "lograft.errors",
    "OffsetAndMetadata": "lograft.types",
    "OffsetQuery": "lograft.types",
    "Position": "lograft.types",
    "Producer": "lograft.producer",
    "RebalanceListener": "lograft.types",
    "RecordReceipt": "lograft.types",
    "SealedAttempt": "lograft.types",
    "TopicPartition": "lograft.types",
    "Transaction": "lograft.transaction",
}
_MODULES: Final = frozenset({"aio", "errors"})


def __getattr__(name: str) -> object:
    """Import a public name from its module at the first use."""
    if name in _MODULES:
        return import_module(f"lograft.{name}")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'lograft' has no attribute {name!r}")
    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
