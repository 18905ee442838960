# SPDX-License-Identifier: Apache-2.0
"""The log directories of a broker: whose they are, which logs lie in them, their room, and moves of logs between them.

Start at `data_directory` (one) and `directories` (all of a broker).
"""

from __future__ import annotations
