# SPDX-License-Identifier: Apache-2.0
"""Small JSON files with a checksum: one line, readable by people, never half right.

Format: one JSON object with sorted keys and no spaces, the member `crc32c` (8 hexadecimal digits) last added: CRC-32C
of the same text without that member. A file that does not check out is no file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import cast

from lograft.wire.checksum import crc32c

_CRC = "crc32c"


def encode_checked(members: Mapping[str, object]) -> bytes:
    """Encode an object; it must not have a member named crc32c."""
    assert _CRC not in members, "the checksum is added here"
    return _text({**members, _CRC: f"{crc32c(_text(members)):08x}"}) + b"\n"


def decode_checked(content: bytes) -> dict[str, object] | None:
    """Decode an object; None when it is not whole and right."""
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
