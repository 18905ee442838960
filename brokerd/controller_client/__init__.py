# SPDX-License-Identifier: Apache-2.0
"""The requests of a broker to the controller: registration, heartbeats, ISR changes, resignations, offline replicas."""
