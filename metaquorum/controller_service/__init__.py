# SPDX-License-Identifier: Apache-2.0
"""The active controller as a service: carries out commands, waits for their commits, answers brokers and operators."""
