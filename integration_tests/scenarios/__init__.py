# SPDX-License-Identifier: Apache-2.0
"""What is done to real servers, one module or package for each: `make VERB` runs the entry of the scenario of that name.

A scenario uses `integration_tests.harness`; its short form for `make test` is in `integration_tests/tests/scenarios`.
"""

from __future__ import annotations
