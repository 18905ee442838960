# SPDX-License-Identifier: Apache-2.0
"""Processes that fork while clients are at work, by real programs: how their children end, and whether they can work (`make forks`)."""
