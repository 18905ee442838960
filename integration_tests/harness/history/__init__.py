# SPDX-License-Identifier: Apache-2.0
"""What clients asked and what they were told, and the checkers that judge it."""

from __future__ import annotations
