# SPDX-License-Identifier: Apache-2.0
"""What the broker knows of the cluster, and what the cluster knows of the broker."""

from __future__ import annotations
