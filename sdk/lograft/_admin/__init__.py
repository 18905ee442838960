# SPDX-License-Identifier: Apache-2.0
"""The calls of the admin clients, one module for each subject. They convert values of `lograft.types` to requests, and answers back."""

from __future__ import annotations
