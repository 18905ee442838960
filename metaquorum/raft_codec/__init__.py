# SPDX-License-Identifier: Apache-2.0
"""Encoding of the Raft core's values: as bytes on disk, and as messages between servers."""
