# SPDX-License-Identifier: Apache-2.0
"""Scenarios for real servers, one module or package for each: `make VERB` runs the scenario of that name.

A scenario uses `integration_tests.harness`. Its short form for `make test` is in `integration_tests/tests/scenarios`.
"""

from __future__ import annotations
