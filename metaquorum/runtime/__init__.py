# SPDX-License-Identifier: Apache-2.0
"""Shells of the metadata quorum: they run the pure cores, own the log, the vote file, the timers and the peers."""

from __future__ import annotations
