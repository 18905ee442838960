# SPDX-License-Identifier: Apache-2.0
"""Small JSON files with a checksum: one line, readable by people.

Format: one JSON object with sorted keys and no spaces. The member `crc32c` (8 hexadecimal digits) has the CRC-32C of the same text
without that member. A file whose checksum is wrong counts as missing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import cast

from lograft.wire.checksum import crc32c

_CRC = "crc32c"


def encode_checked(members: Mapping[str, object]) -> bytes:
    """Return the bytes of an object, with its checksum; it must not have a member named crc32c."""
    assert _CRC not in members, "the checksum is added here"
    return _text({**members, _CRC: f"{crc32c(_text(members)):08x}"}) + b"\n"


def decode_checked(content: bytes) -> dict[str, object] | None:
    """Return the object that the bytes encode, without its checksum; None if it is incomplete or damaged."""
    try:
        parsed: object = json.loads(content)
    except ValueError:
        return None
    if not isinstance(parsed, dict):
        return None
    members = cast("dict[str, object]", parsed)
    found = members.pop(_CRC, None)
    return members if found == f"{crc32c(_text(members)):08x}" else None


def _text(members: Mapping[str, object]) -> bytes:
    return json.dumps(members, sort_keys=True, separators=(",", ":")).encode()
