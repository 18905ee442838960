# SPDX-License-Identifier: Apache-2.0
"""The world simulator: whole servers and clients of Lograft in one process, in virtual time, with faults (docs/simulation.md)."""
