# SPDX-License-Identifier: Apache-2.0
"""What hostile clients cost a real server: memory, descriptors, and the latency of a client beside them (`make hostile`)."""
