# SPDX-License-Identifier: Apache-2.0
"""The values of the Raft core as bytes: on disk and between servers."""
