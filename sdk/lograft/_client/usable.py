# SPDX-License-Identifier: Apache-2.0
"""The error of a client that must not be used any more."""

from __future__ import annotations

from lograft.errors import ClientClosedError, ForkedClientError, LograftError


def unusable_error(client: str, *, is_forked: bool) -> LograftError:
    """Return the error for a call to a client ("producer", ...) that is closed or belongs to the parent of this forked process."""
    if is_forked:
        return ForkedClientError(f"this {client} was made before a fork; make a new one in the child")
    return ClientClosedError(f"the {client} is closed")
