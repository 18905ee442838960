# SPDX-License-Identifier: Apache-2.0
"""The keeper: a small process that owns the servers of a `ProcessCluster`, their connections and their disks.

It is a process of its own for three reasons. It ends the servers whatever becomes of the tests, even if these are killed. A test
that computes does not delay the connections between servers. And it can have a mount namespace of its own, in which disks are
small and which leaves nothing behind.
"""

from __future__ import annotations
