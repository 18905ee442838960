# SPDX-License-Identifier: Apache-2.0
"""A replica of a partition on this broker: its log, its core and its listeners; the replica manager; background work."""
