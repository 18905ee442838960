# SPDX-License-Identifier: Apache-2.0
"""metaquorum."""

from __future__ import annotations
