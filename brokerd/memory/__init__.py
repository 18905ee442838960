# SPDX-License-Identifier: Apache-2.0
"""Memory: the budgets that requests wait for, and the memory of the process as the kernel counts it."""
