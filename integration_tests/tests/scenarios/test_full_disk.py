# SPDX-License-Identifier: Apache-2.0
"""A broker that starts on a real disk without a free byte serves what it has, and accepts appends again when there is space."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from lograft import Admin, LograftError, Producer, TopicPartition

from integration_tests.harness.cluster import BROKER_ID_FIRST, Cluster, broker_name
from integration_tests.harness.faults.disks import empty_disk, fill_disk, free_bytes, small_disk
from integration_tests.harness.load.readers import read_partitions
from integration_tests.harness.wait import wait_for

DISK_BYTES = 96 * 1024 * 1024
MIN_FREE_BYTES = 32 * 1024 * 1024
WAIT_S = 60.0
DELIVERY_TIMEOUT_MS = 1_000
PLACE = TopicPartition("kept", 0)
VALUES = [b"value-%d" % number for number in range(50)]


def read(bootstrap: str) -> list[bytes | None]:
    """Return every value of the partition."""
    return [record.value for record in read_partitions(bootstrap, [PLACE], timeout_s=WAIT_S)]


def append(bootstrap: str, values: list[bytes]) -> bool:
    """Append, and return True if everything was accepted."""
    with contextlib.suppress(LograftError), Producer(bootstrap, delivery_timeout_ms=DELIVERY_TIMEOUT_MS) as producer:
        for value in values:
            producer.send(PLACE.topic, value, partition=PLACE.partition)
        producer.flush()
        return True
    return False


@pytest.mark.process
@pytest.mark.timeout(240)
def test_broker_starts_on_a_disk_without_a_byte_left(tmp_path: Path) -> None:
    """It keeps its metadata, serves reads, follows metadata changes, and accepts appends again when there is space."""
    path = tmp_path / broker_name(BROKER_ID_FIRST)
    with small_disk(path, size_bytes=DISK_BYTES) as is_mounted:
        if not is_mounted:
            pytest.skip("mounting a tmpfs is not permitted")
        arguments = ("--min-free-bytes", str(MIN_FREE_BYTES))
        with Cluster(tmp_path, voter_count=1, broker_count=1, broker_arguments=arguments) as cluster:
            broker, bootstrap = cluster.brokers[BROKER_ID_FIRST], cluster.bootstrap
            with Admin(bootstrap) as admin:
                admin.create_topic(PLACE.topic)
                assert append(bootstrap, VALUES)
                broker.kill()
                fill_disk(path)
                assert free_bytes(path) == 0
                broker.start()
                wait_for(cluster.is_serving, timeout_s=WAIT_S, what="the broker to serve on a full disk")
                assert read(bootstrap) == VALUES
                assert not append(bootstrap, VALUES)
                admin.delete_topic(admin.create_topic("news").topic)
                empty_disk(path)
                wait_for(lambda: append(bootstrap, [b"last"]), timeout_s=WAIT_S, what="room to be noticed")
                assert broker.running, broker.log_tail()
            values = read(bootstrap)
            assert values[: len(VALUES)] == VALUES
            assert values[-1] == b"last"
            broker.kill()
            broker.start()
            wait_for(cluster.is_serving, timeout_s=WAIT_S, what="the broker to serve again")
            assert read(bootstrap) == values
