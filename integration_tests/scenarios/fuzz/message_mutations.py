# SPDX-License-Identifier: Apache-2.0
"""Mutations of protobuf messages: fields that are extreme, missing, repeated, or too long.

    mutate(rng, message)

Each is a pure function of the generator and the message. `mutations` has those of bytes and of batches.
"""

from __future__ import annotations

import random
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from integration_tests.scenarios.fuzz.cluster_facts import ID_BYTES
from integration_tests.scenarios.fuzz.mutations import odd_name

HUGE: Final = 100_000
"""Characters or bytes of a field that is too long."""
MANY: Final = 3_000
"""Members of a list that is too long."""

EXTREMES: Final = (0, 1, -1, 2, 2**15, 2**20, 2**20 + 1, 2**31 - 2, 2**31 - 1, -(2**31), 2**31, 2**32 - 1, 2**32)
EXTREMES_64: Final = (*EXTREMES, 2**62, 2**62 + 1, 2**63 - 1, -(2**63), 2**64 - 1)
RANGES: Final = {
    FieldDescriptor.TYPE_INT32: range(-(2**31), 2**31),
    FieldDescriptor.TYPE_UINT32: range(2**32),
    FieldDescriptor.TYPE_FIXED32: range(2**32),
    FieldDescriptor.TYPE_INT64: range(-(2**63), 2**63),
    FieldDescriptor.TYPE_UINT64: range(2**64),
    FieldDescriptor.TYPE_ENUM: range(-(2**31), 2**31),
}


def mutate(rng: random.Random, message: Message) -> None:
    """Change one to three fields, at any depth, to values that no correct peer sends, or to values just beside the valid ones."""
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        owner, field = rng.choice(_fields(message))
        _set(rng, owner, field)


def _fields(message: Message) -> list[tuple[Any, FieldDescriptor]]:
    found: list[tuple[Any, FieldDescriptor]] = []
    descriptor: Any = message.DESCRIPTOR
    for field in descriptor.fields:
        found.append((message, field))
        if field.type == FieldDescriptor.TYPE_MESSAGE and not _is_map(field):
            value: Any = getattr(message, field.name)
            parts: list[Message] = list(value) if field.is_repeated else [value] if message.HasField(field.name) else []
            for part in parts[:5]:
                found += _fields(part)
    return found


def _set(rng: random.Random, owner: Any, field: FieldDescriptor) -> None:
    name = field.name
    if _is_map(field):
        getattr(owner, name)[odd_name(rng)] = odd_name(rng)
    elif field.is_repeated:
        _set_list(rng, getattr(owner, name), field)
    elif field.type == FieldDescriptor.TYPE_MESSAGE:
        if owner.HasField(name) and rng.random() < 0.7:
            owner.ClearField(name)
        else:
            getattr(owner, name).SetInParent()
    else:
        setattr(owner, name, _odd(rng, field, getattr(owner, name)))


def _set_list(rng: random.Random, values: Any, field: FieldDescriptor) -> None:
    kind = rng.randrange(4)
    if kind == 0:
        del values[:]
    elif kind == 1:
        values.extend(list(values))
    elif field.type == FieldDescriptor.TYPE_MESSAGE:
        first = values[0] if values else None
        for _ in range(MANY if kind == 2 else 1):
            part = values.add()
            if first is not None:
                part.CopyFrom(first)
    else:
        present = values[0] if values else None
        values.extend([_odd(rng, field, present) for _ in range(MANY if kind == 2 and _is_number(field) else 1)])


def _is_map(field: FieldDescriptor) -> bool:
    """Return True for a map of strings; the protocol has no other maps."""
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _is_number(field: FieldDescriptor) -> bool:
    return field.type in RANGES or field.type == FieldDescriptor.TYPE_BOOL


def _odd(rng: random.Random, field: FieldDescriptor, present: Any) -> Any:
    if field.type == FieldDescriptor.TYPE_BOOL:
        return not present
    if field.type == FieldDescriptor.TYPE_STRING:
        here = present or ""
        return rng.choice(["", "x" * HUGE, odd_name(rng), here + "\0", here[:-1], "127.0.0.1:0", "[::1", ":" * 9])
    if field.type == FieldDescriptor.TYPE_BYTES:
        here = present or b""
        return rng.choice([b"", here[:-1], here + b"x", rng.randbytes(ID_BYTES), bytes(ID_BYTES), bytes(HUGE)])
    numbers = RANGES[field.type]
    near = [(present or 0) + step for step in (-1, 1)]
    chosen = rng.choice(near) if rng.random() < 0.3 else rng.choice(EXTREMES_64)
    return chosen if chosen in numbers else rng.choice([numbers[0], numbers[-1]])


def out_of_range(rng: random.Random, data: bytes) -> bytes:
    """Append a 64-bit number of all ones as a field that may be narrower or of another kind. The last occurrence counts."""
    number = rng.randrange(1, 16)
    return data + bytes([number << 3]) + b"\xff" * 9 + b"\x01"
