# SPDX-License-Identifier: Apache-2.0
"""The log directories of a broker: identity, lock, placement of logs, space, and moves of logs between them.

Start at `data_directory` (one directory) and `directories` (all of a broker).
"""

from __future__ import annotations
