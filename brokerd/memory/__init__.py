# SPDX-License-Identifier: Apache-2.0
"""Memory of the process: the budget of requests, the gate before it, and what is given back to the system."""
