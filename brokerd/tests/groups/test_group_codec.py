# SPDX-License-Identifier: Apache-2.0
"""Records of groups as bytes: what goes in comes out, keys are fixed, and foreign bytes are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.coordinator.core import Record
from brokerd.groups.codec import GroupCodec, GroupRecordError, decode, encode
from brokerd.groups.records import (
    CurrentRecord,
    CurrentValue,
    GroupRecord,
    GroupValue,
    MemberRecord,
    MemberValue,
    OffsetRecord,
    OffsetValue,
    PendingOffset,
    PendingRecord,
    PendingValue,
    Subscription,
    TargetRecord,
    TargetValue,
    record_bytes,
)

texts = st.text(max_size=20)
epochs = st.integers(min_value=0, max_value=2**31 - 1)
times = st.integers(min_value=0, max_value=2**62)
topic_ids = st.binary(min_size=16, max_size=16)
numbers = st.integers(min_value=0, max_value=100_000)
partitions = st.dictionaries(
    topic_ids, st.lists(numbers, min_size=1, max_size=5, unique=True).map(lambda each: tuple(sorted(each))), max_size=4
)
held = st.dictionaries(
    topic_ids,
    st.dictionaries(numbers, epochs, min_size=1, max_size=5).map(lambda each: dict(sorted(each.items()))),
    max_size=4,
)
groups = st.builds(
    GroupValue,
    group_epoch=epochs,
    target_epoch=epochs,
    topics_digest=st.binary(max_size=8),
    metadata_offset=times,
    empty_since_ms=st.none() | times,
)
members = st.builds(
    MemberValue,
    subscription=st.builds(Subscription, st.lists(texts, max_size=3).map(tuple), texts),
    processing_limit_ms=times,
    instance_id=st.none() | texts,
    rack=st.none() | texts,
    client_id=texts,
    client_host=texts,
    assignor=texts,
)
targets = st.builds(TargetValue, target_epoch=epochs, partitions=partitions)
currents = st.builds(
    CurrentValue,
    member_epoch=st.integers(min_value=-2, max_value=2**31 - 1),
    previous_epoch=st.integers(min_value=-2, max_value=2**31 - 1),
    assigned=held,
    revoking=held,
)
offsets = st.builds(
    OffsetValue,
    offset=times,
    commit_ms=times,
    leader_epoch=st.integers(min_value=-1, max_value=2**31 - 1),
    metadata=texts,
)
pendings = st.builds(
    PendingValue,
    ingest_epoch=epochs,
    prepared_ms=times,
    offsets_digest=st.binary(max_size=64),
    offsets=st.lists(
        st.builds(
            PendingOffset,
            topic_id=topic_ids,
            partition=numbers,
            offset=times,
            leader_epoch=st.integers(min_value=-1, max_value=2**31 - 1),
            metadata=texts,
        ),
        max_size=4,
    ).map(tuple),
)
records = st.one_of(
    st.builds(GroupRecord, texts, st.none() | groups),
    st.builds(MemberRecord, texts, texts, st.none() | members),
    st.builds(TargetRecord, texts, texts, st.none() | targets),
    st.builds(CurrentRecord, texts, texts, st.none() | currents),
    st.builds(OffsetRecord, texts, topic_ids, numbers, st.none() | offsets),
    st.builds(PendingRecord, texts, texts, epochs, st.none() | pendings),
)


@given(record=records)
def test_every_record_comes_back(
    record: GroupRecord | MemberRecord | TargetRecord | CurrentRecord | OffsetRecord | PendingRecord,
) -> None:
    """Encoding and decoding gives the same record, and the estimate of its size is not below what it takes."""
    coded = GroupCodec().encode(record)
    assert GroupCodec().decode(coded) == record
    assert len(coded.key) + len(coded.value or b"") <= record_bytes(record) + 64


def test_keys_are_as_the_page_says() -> None:
    """Kind, length of the group id, group id, and the rest: they are compared as bytes for as long as logs live."""
    topic_id = bytes(range(16))
    assert encode(GroupRecord("gé", None)) == Record(b"\x01\x00\x03g\xc3\xa9", None)
    assert encode(MemberRecord("g", "m", None)).key == b"\x02\x00\x01gm"
    assert encode(TargetRecord("g", "m", None)).key == b"\x03\x00\x01gm"
    assert encode(CurrentRecord("g", "m", None)).key == b"\x04\x00\x01gm"
    assert encode(OffsetRecord("g", topic_id, 258, None)).key == b"\x05\x00\x01g" + topic_id + b"\x00\x00\x01\x02"
    assert encode(PendingRecord("g", "ïd", 258, None)).key == b"\x06\x00\x01g\x00\x03\xc3\xafd\x00\x00\x01\x02"


@pytest.mark.parametrize(
    "record",
    [
        Record(b"", None),
        Record(b"\x01\x00", None),
        Record(b"\x01\x00\x05g", None),
        Record(b"\x01\x00\x01gm", None),
        Record(b"\x09\x00\x01g", None),
        Record(b"\x05\x00\x01gshort", None),
        Record(b"\x06\x00\x01g", None),
        Record(b"\x06\x00\x01g\x00\x05i\x00\x00\x00\x01", None),
        Record(b"\x06\x00\x01g\x00\x01i\x00\x00\x01", None),
        Record(b"\x06\x00\x01g\x00\x01\xff\x00\x00\x00\x01", None),
        Record(b"\x06\x00\x01g\x00\x01i\x00\x00\x00\x01", b"\xff\xff"),
        Record(b"\x02\x00\x01g\xff", None),
        Record(b"\x01\x00\x01g", b"\xff\xff"),
    ],
)
def test_foreign_bytes_are_refused(record: Record) -> None:
    """Keys and values that this version does not write raise the typed error."""
    with pytest.raises(GroupRecordError):
        decode(record)


def test_a_great_assignment_fits_into_a_batch() -> None:
    """100,000 partitions of one topic, most of one epoch, stay far below the largest decision."""
    current = CurrentValue(
        member_epoch=9, previous_epoch=8, assigned={b"t" * 16: {number: 7 + number % 2 for number in range(100_000)}}
    )
    coded = encode(CurrentRecord("g", "m", current))
    assert coded.value is not None
    assert len(coded.value) < 320_000
    assert decode(coded) == CurrentRecord("g", "m", current)


def test_the_most_pending_offsets_fit_into_a_batch() -> None:
    """As many as one prepare takes, with as much metadata as their outcome may commit, and the estimate covers them."""
    some = [
        PendingOffset(topic_id=b"t" * 16, partition=each, offset=2**62, metadata="m" * 190) for each in range(3_000)
    ]
    record = PendingRecord(
        "g" * 255, "i" * 255, 7, PendingValue(ingest_epoch=2**30, prepared_ms=2**62, offsets=tuple(some))
    )
    coded = encode(record)
    assert coded.value is not None
    assert len(coded.value) < 768 * 1024
    assert len(coded.key) + len(coded.value) <= record_bytes(record) + 64
    assert decode(coded) == record
