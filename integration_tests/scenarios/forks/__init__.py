# SPDX-License-Identifier: Apache-2.0
"""Real programs that fork while their clients work: how the children end, and whether they can work (`make forks`)."""
