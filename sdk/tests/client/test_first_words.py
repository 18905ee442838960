# SPDX-License-Identifier: Apache-2.0
"""What a server is, judged by its first bytes."""

from __future__ import annotations

import pytest
from lograft._client.first_words import Seen, judge, say


@pytest.mark.parametrize(
    ("words", "seen"),
    [
        (b"", Seen.CLOSED),
        (b"HTTP/1.1 400 Bad Request\r\n", Seen.HTTP1),
        (b"HTTP/1.0 505 ", Seen.HTTP1),
        (b"<!DOCTYPE HTML>\n<html", Seen.HTTP1),
        (bytes.fromhex("15030100020246"), Seen.TLS),
        (bytes.fromhex("1603030031020000"), Seen.TLS),
        (bytes.fromhex("000006040000000000") + bytes(6), Seen.HTTP2),
        (bytes.fromhex("00000004000000"), Seen.OTHER),
        (bytes.fromhex("000006040000000001"), Seen.OTHER),
        (b"SSH-2.0-OpenSSH_9.6\r\n", Seen.OTHER),
        (b"-ERR unknown command\r\n", Seen.OTHER),
        (b"\x15", Seen.OTHER),
    ],
)
def test_first_words(words: bytes, seen: Seen) -> None:
    """A whole header decides. Anything else is another protocol."""
    assert judge(words) is seen


def test_unknown_words_are_shown() -> None:
    """The user may recognise the bytes; at most one line of them is shown."""
    said = say("h:1", Seen.OTHER, b"SSH-2.0-OpenSSH_9.6\r\n" * 100)
    assert said.startswith("h:1 speaks another protocol")
    assert said.endswith("(it began with b'SSH-2.0-OpenSSH_9.6\\r\\nSSH')")
