# SPDX-License-Identifier: Apache-2.0
"""The pure core of one partition replica: roles, counted offset, high watermark, acknowledgements."""

from __future__ import annotations
