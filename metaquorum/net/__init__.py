# SPDX-License-Identifier: Apache-2.0
"""What carries everything that servers say to each other: docs/net.md."""
