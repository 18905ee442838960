# SPDX-License-Identifier: Apache-2.0
"""Every limit of the broker, with its name and unit.

Owns numbers only, so that one page shows what a client can make a broker hold. `brokerd.partition.stream_limits` has the limits of
the streams between brokers.
"""

from __future__ import annotations

from typing import Final

MAX_PRODUCE_STREAMS: Final = 2_048
"""Produce streams that may be open on one broker; more are refused with OVERLOADED."""

MAX_FETCH_STREAMS: Final = 2_048
"""Fetch streams that may be open on one broker; more are refused with OVERLOADED."""

MAX_WATCH_STREAMS: Final = 4_096
"""WatchCluster streams that may be open on one broker; more are refused with OVERLOADED."""

MAX_CONCURRENT_RPCS_PER_CONNECTION: Final = 256
"""HTTP/2 streams that one connection may have open; the client's gRPC library queues the rest."""

MAX_CONCURRENT_RPCS: Final = 20_000
"""Calls and streams that one broker serves at the same time; gRPC refuses more with RESOURCE_EXHAUSTED."""

MAX_ROUTES_PER_STREAM: Final = 65_536
"""Routes that one stream may bind over its life, ended ones included. A stream that asks for more ends with LIMIT_EXCEEDED."""

MAX_STREAM_IN_FLIGHT_BYTES: Final = 64 * 1024 * 1024
"""Unacknowledged bytes on one produce stream; from this number on the broker stops reading until acknowledgements come."""

MAX_STREAM_OUTBOX_ITEMS: Final = 4_096
"""Answers of one produce stream that wait to be written; from this number on the broker stops reading the stream."""

DEFAULT_CHUNK_BYTES: Final = 1024 * 1024
"""Bytes of one fetch chunk if the client names no other number."""

MAX_CHUNK_BYTES: Final = 4 * 1024 * 1024
"""Maximum bytes of one fetch chunk that a client may ask for. A single larger batch is still sent."""

UNCOUNTED_CHUNK_BYTES: Final = 16 * 1024
"""Fetch chunks of at most this many bytes take no memory from the budget. With two copies of each, the maximum number of streams
holds 64 MiB in such chunks."""

FETCH_BUFFER_WAIT_MS: Final = 30_000
"""Milliseconds that a fetch stream waits for memory to read a chunk. Then it ends with OVERLOADED."""

FETCH_TAKE_MS: Final = 10_000
"""Milliseconds that a client may leave a chunk unread while other streams wait for memory. Then the broker ends its connection."""

INFLATE_WAIT_MS: Final = 30_000
"""Milliseconds that a batch waits for memory or for a thread to be inflated. Then its stream or call ends with OVERLOADED."""

MAX_INFLATE_THREADS: Final = 2
"""Batches that threads of one broker inflate or decode at the same time. With fewer than four processors it is one."""

MIN_BUDGET_BYTES: Final = 8 * 1024 * 1024
"""Minimum bytes of a memory budget that a setting may name."""

BUDGET_SHARE: Final = 16
"""Divisor of the process's memory limit: the default of each memory budget is that quotient, within the bounds below."""

DEFAULT_FETCH_BUFFER_BYTES_MIN: Final = 32 * 1024 * 1024
"""Lower bound, in bytes, of the default budget for data that is read but not yet taken by clients."""

DEFAULT_INFLATE_BYTES_MIN: Final = 64 * 1024 * 1024
"""Lower bound, in bytes, of the default budget for batches that are being inflated."""

DEFAULT_BUDGET_BYTES_MAX: Final = 256 * 1024 * 1024
"""Upper bound, in bytes, of either default budget."""

MAX_FETCH_CREDIT_BYTES: Final = 1 << 40
"""Maximum unspent credit of one fetch stream, in bytes; more is an invalid request."""

FETCH_MARK_INTERVAL_MS: Final = 3_000
"""Milliseconds between two marks of an idle fetch route."""

BIND_WAIT_MS: Final = 5_000
"""Milliseconds that a route waits until the log of its partition is open."""

IDENTITY_WAIT_MS: Final = 10_000
"""Milliseconds that InitProducer or a produce handshake waits for a producer id from the quorum."""

METADATA_WAIT_MS: Final = 30_000
"""Maximum milliseconds that a request waits for a metadata offset, whatever its deadline."""

APPEND_WAIT_MS: Final = 30_000
"""Maximum milliseconds that an Append waits for its acknowledgement, whatever its deadline."""

FORWARD_WAIT_MS: Final = 30_000
"""Maximum milliseconds of a forwarded call, whatever the client's deadline."""

FORWARD_CONNECT_MS: Final = 1_000
"""Maximum milliseconds that a forwarded call waits for a connection to the other broker."""

FORWARD_BYTES: Final = 16 * 1024 * 1024
"""Bytes of forwarded requests that may be under way to one broker; further requests queue. A larger request goes alone."""

MAX_FORWARDED_CALLS: Final = 512
"""Forwarded calls that may be under way to one broker: half of what a connection carries. More are refused with OVERLOADED."""

FORWARDED_WAIT_MS: Final = 1_000
"""Maximum milliseconds that the receiver of a forwarded call waits for the metadata that the forwarding broker had."""

DEADLINE_MARGIN_MS: Final = 500
"""Maximum milliseconds before the caller's deadline at which a waiting call gives its typed answer. For a short deadline it is a
quarter of the remaining time."""

DEFAULT_READ_RECORDS: Final = 1_000
"""Records of one Read if the client names no other number."""

MAX_READ_RECORDS: Final = 100_000
"""Maximum records of one Read."""

DEFAULT_READ_BYTES: Final = 1024 * 1024
"""Bytes of keys and values of one Read if the client names no other number."""

MAX_READ_BYTES: Final = 3 * 1024 * 1024
"""Maximum bytes of keys and values of one Read."""

MAX_READ_WAIT_MS: Final = 30_000
"""Maximum milliseconds that a Read waits for a record."""

MAX_WAITING_READS: Final = 4_096
"""Reads that may wait for a record on one broker at the same time; more are refused with OVERLOADED."""

MAX_OFFSET_QUERIES: Final = 10_000
"""Maximum queries of one ListOffsets, and maximum partitions of one DeleteRecords."""

MAX_PRODUCER_PARTITIONS: Final = 100
"""Maximum partitions of one DescribeProducers."""

MAX_DESCRIBED_PRODUCERS: Final = 1_000
"""Producers of a partition in an answer to DescribeProducers; about 50 bytes each."""

MAX_CLUSTER_TOPICS: Final = 10_000
"""Maximum topics in one GetCluster answer, and in one request that names topics."""

WATCH_MESSAGE_PARTITIONS: Final = 20_000
"""Partitions after which a watch continues in the next message (about 1 MiB)."""

LOG_OPEN_TASKS: Final = 4
"""Partition logs that the broker opens (recovers) at the same time."""

MAX_OPEN_LOG_FILES: Final = 512
"""Files of partition logs that the broker keeps open: half of a usual `ulimit -n`. Files with unsynced bytes may exceed it."""

RETENTION_CHECK_MS: Final = 60_000
"""Default milliseconds between two rounds of retention over all partitions (`log.retention.check.interval`)."""

RETENTION_CHECK_MS_MAX: Final = 24 * 3_600_000
"""Maximum milliseconds between two rounds of retention that the setting allows."""

RETENTION_STEPS_PER_TURN: Final = 8
"""Partitions that a round of retention checks before the event loop gets its turn."""

REPAIR_CHECK_MS: Final = 10_000
"""Milliseconds between two checks of all partitions for damage. A read that meets damage starts the next check earlier."""

REPAIR_PAUSE_MS: Final = 100
"""Minimum milliseconds between two checks for damage, however many reads meet it."""

REPAIR_RETRY_MS: Final = 30_000
"""Milliseconds after which a repair of a segment is tried again."""

REPAIR_CALL_MS: Final = 2_000
"""Milliseconds that a connected replica has to send one piece of a damaged range. The connection itself may take as long again."""

REPAIR_BYTES_PER_S: Final = 64 * 1024 * 1024
"""Average bytes per second that repairs may read and write."""

PRODUCER_EXPIRY_CHECK_MS: Final = 10 * 60_000
"""Milliseconds between two checks of all partitions for idle producers (`producer.id.expiration.check.interval`)."""

PRODUCER_ID_EXPIRATION_MS: Final = 24 * 3_600_000
"""Default milliseconds without a batch after which a partition forgets a producer."""

FLUSH_THREADS: Final = 4
"""Threads that run fdatasync."""

PRODUCER_ID_LOW_WATER: Final = 100
"""If fewer producer ids than this are left in the block, the broker fetches the next block in advance."""

DELETED_PARTITION_KEEP_MS: Final = 60_000
"""Milliseconds that the broker keeps the directory of a deleted partition before it removes the files."""

UNKNOWN_PARTITION_KEEP_MS: Final = 7 * 24 * 3_600_000
"""Milliseconds that the broker keeps a stray partition directory before it removes the files."""

REMOVED_CHECK_MS: Final = 30_000
"""Milliseconds between two checks for removed directories that are due."""

SPACE_CHECK_MS: Final = 1_000
"""Milliseconds between two checks of the free space of the log directories. Appends cause further checks."""

DRAIN_MS: Final = 2_000
"""Maximum milliseconds that streams have to end after their GoAway at a clean shutdown."""

SHUTDOWN_HANDOVER_MS: Final = 2_000
"""Maximum milliseconds that a clean shutdown waits for the controller's permission."""

KEEPALIVE_MS: Final = 10_000
"""Milliseconds of silence after which a server pings a client."""

KEEPALIVE_TIMEOUT_MS: Final = 20_000
"""Milliseconds without an answer to such a ping after which the server closes the connection."""

REPLICA_LAG_MAX_MS: Final = 5_000
"""Milliseconds that an in-sync follower may lag behind its leader's log end before it leaves the ISR (`replica.lag.time.max.ms`)."""

ISR_RETRY_MIN_MS: Final = 100
"""Milliseconds after a refusal or no answer until a leader proposes in-sync replicas again; doubles each time."""

ISR_RETRY_MAX_MS: Final = 5_000
"""Maximum milliseconds between two proposals of in-sync replicas."""

RESIGN_AFTER_MS: Final = 1_500
"""Milliseconds for which a leader is isolated before it resigns. Longer than the pause of a follower between two attempts to
subscribe."""

RESIGN_RETRY_MS: Final = 1_000
"""Milliseconds after which it resigns again if it still leads."""

NO_ROOM_RETRY_MS: Final = 1_000
"""Milliseconds between two attempts to resign the leaderships in a log directory without room for appends."""

PARTITION_REQUEST_GATHER_MS: Final = 10
"""Milliseconds for which ISR proposals and resignations are collected into one call to the controller."""

MAX_REQUEST_PARTITIONS: Final = 2_000
"""Maximum partitions of one such call, or of one report of offline replicas; the rest waits for the next call."""

PARTITION_REQUEST_MS: Final = 10_000
"""Milliseconds after which such a call times out. The outcome of a change is unknown then."""

OFFLINE_RETRY_MIN_MS: Final = 100
"""Milliseconds after a refusal or no answer until an offline replica is reported again; doubles each time."""

OFFLINE_RETRY_MAX_MS: Final = 5_000
"""Maximum milliseconds between two reports of an offline replica that other brokers still count on."""

SUBSCRIBE_RETRY_MIN_MS: Final = 50
"""Milliseconds after a refusal until a follower subscribes again; doubles each time. A broken stream is no refusal. After a write that
failed it is `SUBSCRIBE_RETRY_MAX_MS` at once."""

SUBSCRIBE_RETRY_MAX_MS: Final = 1_000
"""Maximum milliseconds between two subscriptions of a follower."""

REPLICATE_WINDOW_BYTES: Final = 4 * 1024 * 1024
"""Bytes that the carrier lets a leader send ahead of what its follower has read. The credits of the session limit it further."""

RANGE_CHUNK_BYTES: Final = 1024 * 1024
"""Maximum bytes of batches in one answer to a repair. A single larger batch is still sent."""

RECENT_READS_BYTES: Final = 16 * 1024 * 1024
"""Bytes of batches that a leader keeps for the other followers of a partition after it has sent them to one."""

MAX_REPLICATE_STREAMS: Final = 1_024
"""Streams of followers that may be open on one broker, one for each other broker; more are refused with OVERLOADED."""

REPLICA_SLICE: Final = 200
"""Maximum partitions that one turn of the event loop handles, for a message with many entries and at the end of a stream."""

HIGH_WATERMARK_SAVE_MS: Final = 5_000
"""Milliseconds between two saves of the high watermarks of partitions with several replicas."""

SESSION_CHECK_MS: Final = 250
"""Milliseconds between two checks whether a controller has answered within a session."""
