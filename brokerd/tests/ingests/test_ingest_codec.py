# SPDX-License-Identifier: Apache-2.0
"""Records of ingests as bytes: what goes in comes out, keys are fixed, and foreign bytes are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lograft.internal.v1 import ingest_record_pb2 as pb

from brokerd.coordinator.core import Record
from brokerd.ingests.codec import IngestCodec, IngestRecordError, decode, encode
from brokerd.ingests.records import (
    AttemptKey,
    AttemptRecord,
    AttemptValue,
    CounterRecord,
    DecisionValue,
    EpochsRecord,
    FreedPart,
    IngestKind,
    IngestLogRecord,
    IngestRecord,
    IngestState,
    IngestTopic,
    IngestValue,
    ManifestRecord,
    PlanRecord,
    PlanValue,
    PublishedPart,
    SequencesRecord,
    StagedPart,
    TopicPartition,
    UnresolvedGroup,
    record_bytes,
)

TOPIC = bytes(range(16))
ids = st.text(min_size=1, max_size=20)
topic_ids = st.binary(min_size=16, max_size=16)
int32 = st.integers(min_value=0, max_value=2**31 - 1)
int64 = st.integers(min_value=0, max_value=2**63 - 1)
offsets = st.integers(min_value=-1, max_value=2**62)
attempt_ids = st.binary(min_size=1, max_size=64)


def by_place(each: object) -> tuple[bytes, int]:
    """Return the order of parts."""
    return each.topic_id, each.partition


def parts(kind: type, **fields: object) -> st.SearchStrategy[tuple[object, ...]]:
    """Return lists of parts, in their order."""
    one = st.builds(kind, topic_id=topic_ids, partition=int32, **fields)
    return st.lists(one, max_size=4, unique_by=by_place).map(lambda each: tuple(sorted(each, key=by_place)))


decisions = st.builds(
    DecisionValue,
    round=int32,
    ingest_epoch=int32,
    digest=st.binary(min_size=32, max_size=32),
    records=int64,
    dropped_attempts=int64,
    parts=parts(PublishedPart, records=int64, first_offset=offsets, end_offset=offsets),
)
values = st.builds(
    IngestValue,
    kind=st.sampled_from(IngestKind),
    state=st.sampled_from(IngestState),
    ingest_epoch=int32,
    round=int32,
    topics=st.lists(st.builds(IngestTopic, topic_ids, st.text(max_size=20)), max_size=3).map(tuple),
    ttl_ms=int64,
    touched_ms=int64,
    decision=decisions,
    group=st.none()
    | st.builds(UnresolvedGroup, group_id=ids, ingest_epoch=int32, round=int32, is_committed=st.booleans()),
    owner=st.binary(max_size=64),
    fenced_owners=st.lists(st.binary(min_size=1, max_size=64), max_size=16).map(tuple),
)
staged = parts(StagedPart, first_sequence=int32, records=int64, first_offset=int64, end_offset=int64)
attempts = st.builds(
    AttemptValue,
    producer_id=st.integers(min_value=2**61, max_value=2**62 - 1),
    ingest_epoch=int32,
    round=int32,
    is_sealed=st.booleans(),
    parts=staged,
    freed=parts(FreedPart, end_sequence=int32),
)
plans = st.builds(
    PlanValue,
    base_sequence=int32,
    records=int64,
    is_published=st.booleans(),
    first_offset=offsets,
    end_offset=offsets,
)
manifests = st.dictionaries(int64, attempt_ids, max_size=5).map(
    lambda each: tuple(AttemptKey(task, each[task]) for task in sorted(each))
)
records = st.one_of(
    st.builds(IngestRecord, ids, st.none() | values),
    st.builds(AttemptRecord, ids, st.builds(AttemptKey, int64, attempt_ids), st.none() | attempts),
    st.builds(PlanRecord, ids, int32, st.builds(TopicPartition, topic_ids, int32), st.none() | plans),
    st.builds(SequencesRecord, topic_ids, int32, st.none() | st.lists(int32, max_size=64).map(tuple)),
    st.builds(CounterRecord, st.none() | int64),
    st.builds(EpochsRecord, st.none() | int32),
    st.builds(ManifestRecord, ids, int32, st.none() | manifests),
)


@given(record=records)
def test_every_record_comes_back(record: IngestLogRecord) -> None:
    """Encoding and decoding gives the same record, and the estimate of its size is not below what it takes."""
    coded = IngestCodec().encode(record)
    assert IngestCodec().decode(coded) == record
    assert len(coded.key) + len(coded.value or b"") + 48 <= record_bytes(record)


def test_keys_are_as_the_page_says() -> None:
    """They are compared as bytes for as long as logs live."""
    assert encode(IngestRecord("xé", None)) == Record(b"\x01\x00\x03x\xc3\xa9", None)
    attempt = encode(AttemptRecord("x", AttemptKey(258, b"ab"), None)).key
    assert attempt == b"\x02\x00\x01x" + b"\x00" * 6 + b"\x01\x02" + b"\x00\x02ab"
    plan = encode(PlanRecord("x", 3, TopicPartition(TOPIC, 258), None)).key
    assert plan == b"\x03\x00\x01x" + b"\x00\x00\x00\x03" + TOPIC + b"\x00\x00\x01\x02"
    assert encode(SequencesRecord(TOPIC, 2, None)).key == b"\x04" + TOPIC + b"\x00\x00\x00\x02"
    assert encode(CounterRecord(None)).key == b"\x05"
    assert encode(EpochsRecord(None)).key == b"\x07"
    assert encode(ManifestRecord("x", 3, None)).key == b"\x06\x00\x01x\x00\x00\x00\x03"


INGEST, ATTEMPT = b"\x01\x00\x01x", b"\x02\x00\x01x" + b"\x00" * 8 + b"\x00\x01a"
PLAN, SEQUENCES, MANIFEST = b"\x03\x00\x01x" + b"\x00" * 24, b"\x04" + b"\x00" * 20, b"\x06\x00\x01x\x00\x00\x00\x01"
OPEN = {"kind": 1, "state": 1, "ingest_epoch": 1, "round": 1}
GOOD = {"digest": b"d" * 32, "round": 1}
PART = {"topic_id": TOPIC, "partition": 0}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"", None),
        (b"\x09", None),
        (b"\x01\x00", None),
        (b"\x01\x00\x05x", None),
        (INGEST + b"x", None),
        (b"\x01\x00\x01\xff", None),
        (ATTEMPT[:-1], None),
        (ATTEMPT + b"x", None),
        (PLAN[:-1], None),
        (PLAN + b"x", None),
        (SEQUENCES[:-1], None),
        (SEQUENCES + b"x", None),
        (b"\x05x", None),
        (b"\x07x", None),
        (b"\x07", pb.IngestEpochsRecord(forgotten=-1)),
        (MANIFEST[:-1], None),
        (MANIFEST + b"x", None),
        (INGEST, b"\xff\xff"),
        (INGEST, b""),
        (INGEST, pb.IngestStateRecord(**{**OPEN, "kind": 9})),
        (INGEST, pb.IngestStateRecord(**{**OPEN, "state": 9})),
        (INGEST, pb.IngestStateRecord(**{**OPEN, "state": 2})),
        (INGEST, pb.IngestStateRecord(**{**OPEN, "ingest_epoch": -1})),
        (INGEST, pb.IngestStateRecord(**OPEN, ttl_ms=-1)),
        (INGEST, pb.IngestStateRecord(**OPEN, topics=[pb.IngestTopicRecord(topic_id=b"short")])),
        (INGEST, pb.IngestStateRecord(**OPEN, decision=pb.IngestDecisionRecord(digest=b"short"))),
        (
            INGEST,
            pb.IngestStateRecord(
                **OPEN, decision=pb.IngestDecisionRecord(**GOOD, parts=[pb.PublishedPartRecord(**PART)] * 2)
            ),
        ),
        (
            INGEST,
            pb.IngestStateRecord(
                **OPEN,
                decision=pb.IngestDecisionRecord(**GOOD, parts=[pb.PublishedPartRecord(**PART, first_offset=-2)]),
            ),
        ),
        (INGEST, pb.IngestStateRecord(**OPEN, group=pb.IngestGroupRecord(round=-1))),
        (ATTEMPT, pb.IngestAttemptRecord(producer_id=7)),
        (ATTEMPT, pb.IngestAttemptRecord(producer_id=2**61, parts=[pb.StagedPartRecord(topic_id=b"short")])),
        (ATTEMPT, pb.IngestAttemptRecord(producer_id=2**61, parts=[pb.StagedPartRecord(**PART)] * 2)),
        (ATTEMPT, pb.IngestAttemptRecord(producer_id=2**61, parts=[pb.StagedPartRecord(**PART, records=-1)])),
        (ATTEMPT, pb.IngestAttemptRecord(producer_id=2**61, freed=[pb.FreedPartRecord(**PART, end_sequence=-1)])),
        (PLAN, pb.IngestPlanRecord(base_sequence=-1)),
        (PLAN, pb.IngestPlanRecord(first_offset=-2)),
        (SEQUENCES, pb.IngestSequencesRecord(next_sequences=[0] * 65)),
        (SEQUENCES, pb.IngestSequencesRecord(next_sequences=[-1])),
        (b"\x05", pb.IngestCounterRecord(given=-1)),
        (MANIFEST, pb.IngestManifestRecord(tasks=[1], attempt_ids=[])),
        (MANIFEST, pb.IngestManifestRecord(tasks=[2, 1], attempt_ids=[b"a", b"b"])),
        (MANIFEST, pb.IngestManifestRecord(tasks=[1, 1], attempt_ids=[b"a", b"b"])),
        (MANIFEST, pb.IngestManifestRecord(tasks=[-1], attempt_ids=[b"a"])),
    ],
)
def test_foreign_bytes_are_refused(key: bytes, value: object) -> None:
    """Keys and values that this version does not write raise the typed error."""
    data = value.SerializeToString() if hasattr(value, "SerializeToString") else value
    with pytest.raises(IngestRecordError):
        decode(Record(key, data))
