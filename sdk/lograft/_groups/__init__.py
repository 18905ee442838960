# SPDX-License-Identifier: Apache-2.0
"""Consumer groups, the client's side: one member of a group, its offsets, and the streams to coordinators.

`carrier` finds coordinators and runs one stream to each of them for all members of a process; `stream` is one such stream; `member`
is one member on the event loop; `messages` converts to protobuf. Pure modules: `membership`, `commits`, `steps`.
"""

from __future__ import annotations
