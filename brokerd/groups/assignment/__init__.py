# SPDX-License-Identifier: Apache-2.0
"""Assignors: pure functions from the members and topics of a group to its target assignment (`docs/assignment.md`)."""
