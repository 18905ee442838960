# SPDX-License-Identifier: Apache-2.0
"""Clients in other languages, built from `proto/lograft/v1` alone, and the program that builds and runs them."""

from __future__ import annotations
