# SPDX-License-Identifier: Apache-2.0
"""LogService: `service` has the table of its methods; each method has the module of its name.

The two streams have a core beside them: `produce_session` for `produce`, `fetch_session` for `fetch`. Several methods share these:
`batch_check` (checks batches of clients, and owns the threads for it), `fetch_buffer` (memory of fetched chunks), `readers` (which
replica serves a reader), `by_leader` (calls about many partitions).
"""
