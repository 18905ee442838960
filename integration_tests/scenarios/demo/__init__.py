# SPDX-License-Identifier: Apache-2.0
"""The main use case: ingest with PySpark, replay, and proof that the output equals the input."""

from __future__ import annotations
