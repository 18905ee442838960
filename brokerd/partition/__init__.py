# SPDX-License-Identifier: Apache-2.0
"""Pure core of one partition replica: roles, counted offset, high watermark, acknowledgements."""

from __future__ import annotations
