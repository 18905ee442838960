# SPDX-License-Identifier: Apache-2.0
"""Rows of an image to bytes and back: the values in the image store and in snapshots.

Owns which rows are records (`record_codec.py`). The other rows (blocks of partitions or of deleted topics, offsets of switches) are
stored as they are.
Source: `metaquorum/metadata/image_rows.py`.
"""

from __future__ import annotations

from metaquorum.metadata import image_rows, record_codec
from metaquorum.metadata.image_rows import AckSwitch, DeletedBlock, PartitionBlock, Row


def encode_row(row: Row) -> bytes:
    """Return the value of a row."""
    return row.data if isinstance(row, PartitionBlock | DeletedBlock | AckSwitch) else record_codec.encode(row)


def decode_row(key: bytes, value: bytes) -> Row:
    """Return the row for a key and a value.

    Raises:
        struct.error: no row has such a key.
        RecordDecodeError: the value is not a record.
    """
    place = image_rows.block_place(key)
    if place is not None:
        return PartitionBlock(topic_id=place[0], number=place[1], data=value)
    number = image_rows.deleted_place(key)
    if number is not None:
        return DeletedBlock(number=number, data=value)
    resource = image_rows.ack_switch_place(key)
    if resource is not None:
        return AckSwitch(resource=resource[0], resource_name=resource[1], data=value)
    return record_codec.decode(value)
