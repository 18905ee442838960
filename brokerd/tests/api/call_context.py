# SPDX-License-Identifier: Apache-2.0
"""The part of a gRPC context that the calls of a broker look at, for tests that run them without a connection."""

from __future__ import annotations

import asyncio
from typing import cast

from brokerd.api.calls import ServicerContext

Metadata = tuple[tuple[str, str], ...]


class _CallContext:
    """A deadline and what the client sent along."""

    def __init__(self, end_s: float | None, metadata: Metadata) -> None:
        self._end_s = end_s
        self._metadata = metadata

    def time_remaining(self) -> float | None:
        return None if self._end_s is None else self._end_s - asyncio.get_running_loop().time()

    def invocation_metadata(self) -> Metadata:
        return self._metadata


def call_context(*, seconds: float | None, metadata: Metadata = ()) -> ServicerContext:
    """Return the context of a call that has this long from now.

    None: no deadline. Whatever else is asked of it raises AttributeError.
    """
    end_s = None if seconds is None else asyncio.get_running_loop().time() + seconds
    return cast("ServicerContext", _CallContext(end_s, metadata))
