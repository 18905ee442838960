# SPDX-License-Identifier: Apache-2.0
"""Real clusters for the tests of programs that use Lograft: one in this process, one of several processes, and faults.

This package only names the public classes. Python imports each of them at its first use, so that an import costs nothing.
The servers come with the distribution `lograft-server`. It also brings the pytest plugin `pytest_lograft`, with fixtures for
all of this. `lograft.testing` imports no server: it finds the embedded cluster by its name, and starts processes.

    from lograft.testing import EmbeddedCluster, ProcessCluster
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from lograft.testing.cluster import Fault as Fault
    from lograft.testing.cluster import ProcessCluster as ProcessCluster
    from lograft.testing.embedded import EmbeddedCluster as EmbeddedCluster
    from lograft.testing.errors import ClusterError as ClusterError
    from lograft.testing.errors import ClusterFailedError as ClusterFailedError
    from lograft.testing.errors import FaultRefusedError as FaultRefusedError
    from lograft.testing.errors import ServersMissingError as ServersMissingError
    from lograft.testing.plan import Act as Act
    from lograft.testing.plan import Step as Step
    from lograft.testing.plan import storm_plan as storm_plan
    from lograft.testing.storm import MemberFailedError as MemberFailedError
    from lograft.testing.storm import RebalanceStorm as RebalanceStorm

__all__ = [
    "Act",
    "ClusterError",
    "ClusterFailedError",
    "EmbeddedCluster",
    "Fault",
    "FaultRefusedError",
    "MemberFailedError",
    "ProcessCluster",
    "RebalanceStorm",
    "ServersMissingError",
    "Step",
    "storm_plan",
]

_HOMES: Final = {
    "Act": "lograft.testing.plan",
    "ClusterError": "lograft.testing.errors",
    "ClusterFailedError": "lograft.testing.errors",
    "EmbeddedCluster": "lograft.testing.embedded",
    "Fault": "lograft.testing.cluster",
    "FaultRefusedError": "lograft.testing.errors",
    "MemberFailedError": "lograft.testing.storm",
    "ProcessCluster": "lograft.testing.cluster",
    "RebalanceStorm": "lograft.testing.storm",
    "ServersMissingError": "lograft.testing.errors",
    "Step": "lograft.testing.plan",
    "storm_plan": "lograft.testing.plan",
}


def __getattr__(name: str) -> object:
    """Import a public name from its module at the first use."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'lograft.testing' has no attribute {name!r}")
    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
