# SPDX-License-Identifier: Apache-2.0
"""The carrier: the connections over which servers talk to each other. See docs/net.md."""
