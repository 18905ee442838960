# SPDX-License-Identifier: Apache-2.0
"""GroupService: the public calls and the stream of consumer groups (`docs/groups.md` section "Service")."""
