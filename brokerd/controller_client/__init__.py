# SPDX-License-Identifier: Apache-2.0
"""What a broker asks of the controller: its registration and heartbeats, changes of ISR, resignations, offline replicas."""
