# SPDX-License-Identifier: Apache-2.0
"""Full-rate produce for minutes to servers that are voters too: no election, no lost record, no growth."""

from __future__ import annotations
