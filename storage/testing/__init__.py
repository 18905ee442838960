# SPDX-License-Identifier: Apache-2.0
"""What tests of the log engine, and of everything above it, run on: a disk that crashes, and builders of batches."""

from __future__ import annotations
