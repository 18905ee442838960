# SPDX-License-Identifier: Apache-2.0
"""A replica of a partition on this broker: log, core and those who wait for it in one place; its manager; its maintenance."""
