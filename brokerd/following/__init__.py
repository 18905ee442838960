# SPDX-License-Identifier: Apache-2.0
"""The streams to the brokers that lead partitions which this one follows."""

from __future__ import annotations
