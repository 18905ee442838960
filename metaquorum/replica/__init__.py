# SPDX-License-Identifier: Apache-2.0
"""A member of the quorum: drives the Raft core, keeps log, vote and snapshots, and delivers committed batches."""
