# SPDX-License-Identifier: Apache-2.0
"""The calls of the admin clients, a module for each subject: each turns values of `lograft.types` into requests, and answers back."""

from __future__ import annotations
