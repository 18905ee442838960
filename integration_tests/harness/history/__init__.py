# SPDX-License-Identifier: Apache-2.0
"""The requests and answers of clients, and the checkers that judge them."""

from __future__ import annotations
