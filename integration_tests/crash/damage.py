# SPDX-License-Identifier: Apache-2.0
"""Ways in which a disk returns other bytes than were written. Each is a function of a generator and the bytes."""

from __future__ import annotations

import random
from collections.abc import Callable

SECTOR_BYTES = 512
FLIPPED_BITS_MAX = 4
GARBAGE_BYTES_MAX = 700


def flip_bits(rng: random.Random, content: bytes, older: bytes) -> bytes:
    """Flip a few bits anywhere."""
    changed = bytearray(content)
    for _ in range(rng.randint(1, FLIPPED_BITS_MAX)):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def cut(rng: random.Random, content: bytes, older: bytes) -> bytes:
    """Lose the end, from any byte or from a sector boundary."""
    size_bytes = rng.randrange(len(content))
    return content[: size_bytes if rng.randrange(2) else size_bytes // SECTOR_BYTES * SECTOR_BYTES]


def zero_sectors(rng: random.Random, content: bytes, older: bytes) -> bytes:
    """Read zeros in one to three neighbouring sectors."""
    first = _sector(rng, content)
    return _put(content, first, bytes(SECTOR_BYTES * rng.randint(1, 3)))


def stale_from_elsewhere(rng: random.Random, content: bytes, older: bytes) -> bytes:
    """Put the content of another place of the file into a sector."""
    source = _sector(rng, content)
    return _put(content, _sector(rng, content), content[source : source + SECTOR_BYTES])


def stale_from_before(rng: random.Random, content: bytes, older: bytes) -> bytes:
    """Lose a write: one sector, or all from one on, get the content of an older version of the file."""
    if not older:
        return stale_from_elsewhere(rng, content, older)
    first = _sector(rng, older)
    end = first + SECTOR_BYTES if rng.randrange(2) else len(older)
    return _put(content, first, older[first:end])


def older_version(rng: random.Random, content: bytes, older: bytes) -> bytes:
    """Return a whole older version, or flip bits if there is none. Only for indexes: they say which bytes they cover."""
    return older or flip_bits(rng, content, older)


def garbage_tail(rng: random.Random, content: bytes, older: bytes) -> bytes:
    """Append foreign bytes: random ones, zeros, or a piece of the file itself."""
    size_bytes = rng.randint(1, GARBAGE_BYTES_MAX)
    start = rng.randrange(len(content))
    return content + rng.choice((rng.randbytes(size_bytes), bytes(size_bytes), content[start : start + size_bytes]))


def swap_sectors(rng: random.Random, content: bytes, older: bytes) -> bytes:
    """Swap two sectors."""
    first, second = _sector(rng, content), _sector(rng, content)
    one, two = content[first : first + SECTOR_BYTES], content[second : second + SECTOR_BYTES]
    return _put(_put(content, first, two), second, one)


def random_sector(rng: random.Random, content: bytes, older: bytes) -> bytes:
    """Put random bytes into a sector."""
    return _put(content, _sector(rng, content), rng.randbytes(SECTOR_BYTES))


def _sector(rng: random.Random, content: bytes) -> int:
    """Return the start of a random sector."""
    return rng.randrange((len(content) + SECTOR_BYTES - 1) // SECTOR_BYTES) * SECTOR_BYTES


def _put(content: bytes, position: int, data: bytes) -> bytes:
    """Overwrite bytes without changing the size."""
    return (content[:position] + data + content[position + len(data) :])[: len(content)]


Damage = Callable[[random.Random, bytes, bytes], bytes]
"""(generator, content, older version of the file or nothing) -> damaged content."""

DAMAGES: tuple[Damage, ...] = (
    flip_bits,
    flip_bits,
    cut,
    zero_sectors,
    stale_from_elsewhere,
    stale_from_before,
    garbage_tail,
    swap_sectors,
    random_sector,
)
INDEX_DAMAGES: tuple[Damage, ...] = (*DAMAGES, older_version, older_version)
