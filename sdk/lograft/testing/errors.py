# SPDX-License-Identifier: Apache-2.0
"""What can go wrong with a cluster of a test. Every message says what to do."""

from __future__ import annotations

from importlib.util import find_spec


class ClusterError(Exception):
    """Base class of the errors of `lograft.testing`."""


class ServersMissingError(ClusterError, ImportError):
    """The distribution `lograft-server` is not installed."""


class ClusterFailedError(ClusterError):
    """A server did not start, or ended by itself. The message has the end of its log."""


class FaultRefusedError(ClusterError):
    """A fault cannot be brought about here. Nothing was changed."""


def require_servers() -> None:
    """Check that the servers are installed. Imports nothing.

    Raises:
        ServersMissingError: they are not.
    """
    if find_spec("brokerd") is None:
        raise ServersMissingError(
            "lograft.testing runs real servers, which are not installed: pip install lograft-server"
        )
