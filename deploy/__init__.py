# SPDX-License-Identifier: Apache-2.0
"""Deployment of the servers: container file, its entry point, Kubernetes manifests and an offline renderer of them."""

from __future__ import annotations
