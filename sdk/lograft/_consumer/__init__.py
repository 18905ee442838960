# SPDX-License-Identifier: Apache-2.0
"""From a broker's chunk to the application's record: what both consumers share.

`fetcher` is a consumer's side of the event loop: the `engine`, which finds brokers to read from, `stream`, which reads from one, and
`offsets`. `collector` makes batches and records of what came. Pure: `arguments`, `fetch_buffer`, `nearest`, `troubles`.
"""

from __future__ import annotations
