# SPDX-License-Identifier: Apache-2.0
"""Shells around partition replicas: they own the logs, run the cores, flush, and wake who waits."""

from __future__ import annotations
