# SPDX-License-Identifier: Apache-2.0
"""Parts and slices as messages between servers, and back. Pure translation; what is absurd is judged by `parts`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lograft.internal.v1 import publication_pb2 as pb

from brokerd.publishing.parts import Part, Slice


def write_slices(slices: Iterable[Slice]) -> list[pb.StagedSlice]:
    """Return slices as messages."""
    return [
        pb.StagedSlice(
            producer_id=each.producer_id,
            first_sequence=each.first_sequence,
            records=each.records,
            first_offset=each.first_offset,
            end_offset=each.end_offset,
        )
        for each in slices
    ]


def read_slices(slices: Sequence[pb.StagedSlice]) -> tuple[Slice, ...]:
    """Return slices from messages."""
    return tuple(
        Slice(each.producer_id, each.first_sequence, each.records, each.first_offset, each.end_offset)
        for each in slices
    )


def write_part(part: Part, peers: pb.PublicationPeers) -> pb.PublishPartRequest:
    """Return a part as a request."""
    return pb.PublishPartRequest(
        peers=peers,
        topic_id=part.topic_id,
        partition=part.partition,
        producer_id=part.producer_id,
        base_sequence=part.base_sequence,
        records=part.records,
        slices=write_slices(part.slices),
        lost_records=part.lost_records,
    )


def read_part(request: pb.PublishPartRequest) -> Part:
    """Return the part of a request."""
    return Part(
        topic_id=request.topic_id,
        partition=request.partition,
        producer_id=request.producer_id,
        base_sequence=request.base_sequence,
        records=request.records,
        slices=read_slices(request.slices),
        lost_records=request.lost_records,
    )
