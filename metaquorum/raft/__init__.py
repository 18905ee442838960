# SPDX-License-Identifier: Apache-2.0
"""Pure Raft core of the metadata quorum: events and the time in, effects out.

It has no clock, no I/O, no randomness of its own, and no wire format.
"""

from __future__ import annotations
