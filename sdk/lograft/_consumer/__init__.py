# SPDX-License-Identifier: Apache-2.0
"""The way from a broker's chunk to the application's record; both consumers share it.

`fetcher` runs a consumer's part of the event loop: the `engine`, which finds brokers to read from, `stream`, which reads from
one broker, and `offsets`. `collector` makes batches and records from the chunks. Pure modules: `arguments`, `fetch_buffer`,
`nearest`, `troubles`.
"""

from __future__ import annotations
