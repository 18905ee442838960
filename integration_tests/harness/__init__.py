# SPDX-License-Identifier: Apache-2.0
"""What every scenario is made of: a cluster of real processes, a load on it, the history of what clients saw, and faults.

Where to find what:

- `process`, `cluster`: start, kill, pause, stop and restart servers, and read their logs. `ports` and `wait` serve them.
- `load`: clients at work: records (`record_load`) and metadata changes (`metadata_load`).
- `history`: what clients asked and were told, and the checkers that judge it.
- `faults`: network namespaces, a proxy that forgets connections, full disks, wrong clocks.
- `scene`: a cluster under a load of records, and the questions that scenarios ask of it.
- `outcome`: verdict, figures and evidence of one run.

The harness imports no scenario.
"""

from __future__ import annotations
