# SPDX-License-Identifier: Apache-2.0
"""Computes target assignments beside the event loop: a queue, one process, and the bytes between them (`docs/assignment.md`)."""
