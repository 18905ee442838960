# SPDX-License-Identifier: Apache-2.0
"""A quorum server as a process: its settings, its start and stop, its logging and metrics."""
