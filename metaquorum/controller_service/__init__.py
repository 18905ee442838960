# SPDX-License-Identifier: Apache-2.0
"""The active controller as a service: executes commands, waits for their commits, and answers brokers and operators."""
