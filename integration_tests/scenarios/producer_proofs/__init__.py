# SPDX-License-Identifier: Apache-2.0
"""`make producer-proofs`: producers with full pipelines through kills of leaders, and the judge of their logs and handles."""

from __future__ import annotations
