# SPDX-License-Identifier: Apache-2.0
"""The streams between the leader of a partition and its followers, and the ranges that repairs fetch."""
