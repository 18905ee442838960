# SPDX-License-Identifier: Apache-2.0
"""Every limit of the broker, by name and unit.

Owns numbers only, so that one page shows what a client can make a broker hold. What bounds the streams between brokers stands in
`brokerd.partition.stream_limits`.
"""

from __future__ import annotations

from typing import Final

MAX_PRODUCE_STREAMS: Final = 2_048
"""Produce streams open at once on one broker; more are refused with OVERLOADED."""

MAX_FETCH_STREAMS: Final = 2_048
"""Fetch streams open at once on one broker; more are refused with OVERLOADED."""

MAX_WATCH_STREAMS: Final = 4_096
"""WatchCluster streams open at once on one broker; more are refused with OVERLOADED."""

MAX_CONCURRENT_RPCS_PER_CONNECTION: Final = 256
"""HTTP/2 streams that one connection may have open; the client's library queues more."""

MAX_CONCURRENT_RPCS: Final = 20_000
"""Calls and streams that one broker serves at once; more are refused by the transport with RESOURCE_EXHAUSTED."""

MAX_ROUTES_PER_STREAM: Final = 65_536
"""Routes bound over the life of one stream, ended ones included; one that asks for more ends: LIMIT_EXCEEDED."""

MAX_STREAM_IN_FLIGHT_BYTES: Final = 64 * 1024 * 1024
"""Unacknowledged bytes on one produce stream; above it the broker stops reading until acknowledgements come."""

MAX_STREAM_OUTBOX_ITEMS: Final = 4_096
"""Answers of one produce stream that wait to be written; above it the broker stops reading the stream."""

DEFAULT_CHUNK_BYTES: Final = 1024 * 1024
"""Bytes of one fetch chunk when the client names no other."""

MAX_CHUNK_BYTES: Final = 4 * 1024 * 1024
"""Most bytes of one fetch chunk that a client may ask for; a single larger batch is still sent."""

UNCOUNTED_CHUNK_BYTES: Final = 16 * 1024
"""Bytes of a fetch chunk up to which no memory is asked for: with two copies of it, the most streams have 64 MiB of these under way."""

FETCH_BUFFER_WAIT_MS: Final = 30_000
"""Milliseconds that a fetch stream waits for memory to read a chunk; then it ends with OVERLOADED."""

FETCH_TAKE_MS: Final = 10_000
"""Milliseconds that a client may leave a chunk untaken while other streams wait for memory; then its connection is ended."""

INFLATE_WAIT_MS: Final = 30_000
"""Milliseconds that a batch waits for memory to be inflated, or for a thread; then its stream or call ends with OVERLOADED."""

MAX_INFLATE_THREADS: Final = 2
"""Batches that are inflated or decoded in threads at once on one broker; one with fewer than four processors."""

MIN_BUDGET_BYTES: Final = 8 * 1024 * 1024
"""Least bytes of a memory budget that a setting may name."""

BUDGET_SHARE: Final = 16
"""The part of the memory limit that each memory budget has unless told otherwise: one divided by this, within the bounds below."""

DEFAULT_FETCH_BUFFER_BYTES_MIN: Final = 32 * 1024 * 1024
"""Least bytes of that default for what is read and not yet taken."""

DEFAULT_INFLATE_BYTES_MIN: Final = 64 * 1024 * 1024
"""Least bytes of that default for what is being inflated."""

DEFAULT_BUDGET_BYTES_MAX: Final = 256 * 1024 * 1024
"""Most bytes of that default, for either."""

MAX_CREDIT_BYTES: Final = 1 << 40
"""Most unspent credit of one fetch stream; more is an invalid request."""

FETCH_MARK_INTERVAL_MS: Final = 3_000
"""Milliseconds between the marks of an idle fetch route."""

BIND_WAIT_MS: Final = 5_000
"""Milliseconds that the binding of a route waits for its partition's log to open."""

IDENTITY_WAIT_MS: Final = 10_000
"""Milliseconds that a produce handshake waits for a producer id from the quorum."""

METADATA_WAIT_MS: Final = 30_000
"""Most milliseconds that a request waits for a metadata offset, whatever its deadline."""

APPEND_WAIT_MS: Final = 30_000
"""Most milliseconds that an Append waits for its acknowledgement, whatever its deadline."""

FORWARD_WAIT_MS: Final = 30_000
"""Most milliseconds that a forwarded call may take, whatever the client's deadline."""

FORWARD_CONNECT_MS: Final = 1_000
"""Most milliseconds that a forwarded call waits for a connection to the other broker."""

FORWARD_BYTES: Final = 16 * 1024 * 1024
"""Bytes of forwarded requests that are under way to one broker; more wait in turn. A larger one goes alone."""

MAX_FORWARDED_CALLS: Final = 512
"""Forwarded calls that are under way to one broker, half of what a connection carries; more are refused with OVERLOADED."""

FORWARDED_WAIT_MS: Final = 1_000
"""Most milliseconds that a receiver of a forwarded call waits for the metadata that the forwarder had seen."""

DEADLINE_MARGIN_MS: Final = 500
"""Milliseconds before a caller's deadline, at most, at which a waiting call gives its typed answer; a quarter of a short time."""

DEFAULT_READ_RECORDS: Final = 1_000
"""Records of one Read when the client names no other number."""

MAX_READ_RECORDS: Final = 100_000
"""Most records of one Read."""

DEFAULT_READ_BYTES: Final = 1024 * 1024
"""Bytes of keys and values of one Read when the client names no other number."""

MAX_READ_BYTES: Final = 3 * 1024 * 1024
"""Most bytes of keys and values of one Read."""

MAX_READ_WAIT_MS: Final = 30_000
"""Most milliseconds that a Read waits for a record."""

MAX_WAITING_READS: Final = 4_096
"""Reads that wait at once for a record on one broker; more are refused with OVERLOADED."""

MAX_OFFSET_QUERIES: Final = 10_000
"""Most queries of one ListOffsets, and partitions of one DeleteRecords."""

MAX_CLUSTER_TOPICS: Final = 10_000
"""Most topics in one GetCluster answer and in one request for named topics."""

WATCH_MESSAGE_PARTITIONS: Final = 20_000
"""Partitions after which a watch goes on in the next message (about 1 MiB)."""

LOG_OPEN_TASKS: Final = 4
"""Partition logs that are opened (recovered) at the same time."""

MAX_OPEN_LOG_FILES: Final = 512
"""Files of partition logs that are kept open; those with unsynced bytes may exceed it (half of a usual `ulimit -n`)."""

RETENTION_CHECK_MS: Final = 60_000
"""Milliseconds between two rounds of retention over all partitions (`log.retention.check.interval`), unless told otherwise."""

RETENTION_CHECK_MS_MAX: Final = 24 * 3_600_000
"""Milliseconds that may lie between two rounds of retention at most."""

RETENTION_STEPS_PER_TURN: Final = 8
"""Partitions that a round of retention looks at before the event loop gets its turn."""

REPAIR_CHECK_MS: Final = 10_000
"""Milliseconds between two looks for damage over all partitions; a read that meets damage brings the next look forward."""

REPAIR_PAUSE_MS: Final = 100
"""Milliseconds between two looks for damage at least, however many reads meet it."""

REPAIR_RETRY_MS: Final = 30_000
"""Milliseconds after which a segment is looked at again that could not be repaired."""

REPAIR_CALL_MS: Final = 2_000
"""Milliseconds that another replica has to give a piece of a damaged range, once it is connected; to connect, it has as many."""

REPAIR_BYTES_PER_S: Final = 64 * 1024 * 1024
"""Bytes that repairs read and write in a second, on average."""

PRODUCER_EXPIRY_CHECK_MS: Final = 10 * 60_000
"""Milliseconds between two looks for idle producers over all partitions (`producer.id.expiration.check.interval`)."""

PRODUCER_ID_EXPIRATION_MS: Final = 24 * 3_600_000
"""Milliseconds without a batch after which a partition forgets a producer, unless told otherwise."""

FLUSH_THREADS: Final = 4
"""Threads that run fdatasync."""

PRODUCER_ID_LOW_WATER: Final = 100
"""Producer ids left in the block at which the next block is fetched ahead of need."""

DELETED_PARTITION_KEEP_MS: Final = 60_000
"""Milliseconds that the directory of a deleted partition is kept before its files are removed."""

UNKNOWN_PARTITION_KEEP_MS: Final = 7 * 24 * 3_600_000
"""Milliseconds that a partition directory unknown to the metadata is kept before its files are removed."""

REMOVED_CHECK_MS: Final = 30_000
"""Milliseconds between looks for removed directories that are due."""

SPACE_CHECK_MS: Final = 1_000
"""Milliseconds between looks at the free space of the log directories, beside those that appends cause."""

DRAIN_MS: Final = 2_000
"""Milliseconds between the GoAway on the streams and the end of the server at an orderly stop."""

SHUTDOWN_HANDOVER_MS: Final = 2_000
"""Milliseconds that an orderly stop waits for the controller's permission."""

KEEPALIVE_MS: Final = 10_000
"""Milliseconds of silence after which a server pings a client."""

KEEPALIVE_TIMEOUT_MS: Final = 20_000
"""Milliseconds without an answer to such a ping after which its connection is closed."""

REPLICA_LAG_MAX_MS: Final = 5_000
"""Milliseconds that an in-sync follower may be behind its leader's log end before it leaves (`replica.lag.time.max.ms`)."""

ISR_RETRY_MIN_MS: Final = 100
"""Milliseconds before a leader proposes in-sync replicas again after a refusal or no answer; doubles each time."""

ISR_RETRY_MAX_MS: Final = 5_000
"""Most milliseconds between two proposals of in-sync replicas."""

RESIGN_AFTER_MS: Final = 1_500
"""Milliseconds that a leader is cut off from followers that live before it asks that another replica leads; more than followers
pause between two attempts."""

RESIGN_RETRY_MS: Final = 1_000
"""Milliseconds before it asks again, if it still leads then."""

NO_ROOM_RETRY_MS: Final = 1_000
"""Milliseconds between two attempts to give up what is led in a log directory that has too little room for appends."""

PARTITION_REQUEST_GATHER_MS: Final = 10
"""Milliseconds that proposals of in-sync replicas, and resignations, are gathered for one call of the controller."""

MAX_REQUEST_PARTITIONS: Final = 2_000
"""Partitions of one such call, or of one that reports offline replicas; more wait for the next."""

PARTITION_REQUEST_MS: Final = 10_000
"""Milliseconds after which such a call is given up; a change has an unknown outcome then."""

OFFLINE_RETRY_MIN_MS: Final = 100
"""Milliseconds before an offline replica is reported again after a refusal or no answer; doubles each time."""

OFFLINE_RETRY_MAX_MS: Final = 5_000
"""Most milliseconds between two reports of an offline replica that others still count on."""

SUBSCRIBE_RETRY_MIN_MS: Final = 50
"""Milliseconds before a follower subscribes again after a refusal; doubles each time. A broken stream is no refusal."""

SUBSCRIBE_RETRY_MAX_MS: Final = 1_000
"""Most milliseconds between two subscriptions of a follower."""

REPLICATE_WINDOW_BYTES: Final = 4 * 1024 * 1024
"""Bytes that a leader may send ahead of what its follower has taken from the connection, over what the session allows it."""

RANGE_CHUNK_BYTES: Final = 1024 * 1024
"""Bytes of batches in one answer to a repair; a single larger batch is still sent."""

RECENT_READS_BYTES: Final = 16 * 1024 * 1024
"""Bytes of batches that a leader keeps after it sent them to one follower, for the other followers of the partition."""

MAX_REPLICATE_STREAMS: Final = 1_024
"""Streams of followers open at once on one broker, one for each other broker; more are refused with OVERLOADED."""

REPLICA_SLICE: Final = 200
"""Partitions whose end of a stream is handled before the event loop gets its turn."""

HIGH_WATERMARK_SAVE_MS: Final = 5_000
"""Milliseconds between two savings of the high watermarks of partitions with several replicas."""

SESSION_CHECK_MS: Final = 250
"""Milliseconds between two looks whether a controller has answered within a session."""
