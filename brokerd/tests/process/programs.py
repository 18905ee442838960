# SPDX-License-Identifier: Apache-2.0
"""Brokers as processes, and a blocking client made of generated code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
from lograft.v1 import admin_pb2, admin_pb2_grpc, log_pb2, log_pb2_grpc

from brokerd.tests.support import WAIT_S

READY = re.compile(r"lograft dev: ready on (127\.0\.0\.1:\d+)")


@contextmanager
def started(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run `brokerd` with these arguments; it is killed at the end."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LOGRAFT_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "brokerd", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def read_ready(process: subprocess.Popen[str]) -> str:
    """Wait for the line with which `brokerd dev` says that it serves, and return its address."""
    assert process.stdout is not None
    line = process.stdout.readline()
    found = READY.match(line)
    assert found is not None, (line, process.communicate(timeout=WAIT_S))
    return found[1]


def append_and_read(bootstrap: str, value: bytes) -> list[bytes]:
    """Append a record to topic "t", which is created if needed, and read all of it."""
    with grpc.insecure_channel(bootstrap, options=(("grpc.enable_http_proxy", 0),)) as channel:
        listed = admin_pb2_grpc.AdminServiceStub(channel).ListTopics(admin_pb2.ListTopicsRequest(), timeout=WAIT_S)
        if not listed.topics:
            admin_pb2_grpc.AdminServiceStub(channel).CreateTopic(
                admin_pb2.CreateTopicRequest(topic="t"), timeout=WAIT_S
            )
        log = log_pb2_grpc.LogServiceStub(channel)
        log.Append(log_pb2.AppendRequest(topic="t", records=[log_pb2.Record(value=value)]), timeout=WAIT_S)
        read = log.Read(log_pb2.ReadRequest(topic="t"), timeout=WAIT_S)
        return [record.value for record in read.records]
