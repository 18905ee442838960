# SPDX-License-Identifier: Apache-2.0
"""The main job: ingest with PySpark, replay, and proof that what came out is what went in."""

from __future__ import annotations
