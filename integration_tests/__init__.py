# SPDX-License-Identifier: Apache-2.0
"""integration_tests."""

from __future__ import annotations
