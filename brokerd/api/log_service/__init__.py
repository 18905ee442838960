# SPDX-License-Identifier: Apache-2.0
"""LogService: `service` is its table of methods; each method has the module of its name.

The two streams have a core beside them: `produce` has `produce_session`, `fetch` has `fetch_session`. What several methods need:
`batch_check` (the check of what comes in, and its threads), `fetch_buffer` (memory of fetched chunks), `readers` (which replica
serves a reader), `by_leader` (calls about many partitions).
"""
