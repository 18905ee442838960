# SPDX-License-Identifier: Apache-2.0
"""The parts of every scenario: a cluster of real processes, a load, the history of what clients saw, and faults.

- `process`, `cluster`: start, kill, pause, stop and restart servers, and read their logs. They use `ports` and `wait`.
- `load`: clients that send and read records (`record_load`) or change metadata (`metadata_load`).
- `history`: the requests and answers of clients, and the checkers that judge them.
- `faults`: network namespaces, a proxy that forgets connections, full disks, wrong clocks.
- `scene`: a cluster under a load of records, and the questions that scenarios ask about it.
- `outcome`: verdict, figures and evidence of one run.

The harness imports no scenario.
"""

from __future__ import annotations
