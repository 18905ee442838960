# SPDX-License-Identifier: Apache-2.0
"""Consumer groups: the core that decides about members, assignments and offsets."""
