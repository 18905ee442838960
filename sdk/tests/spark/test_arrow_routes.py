# SPDX-License-Identifier: Apache-2.0
"""Spark's batches split for the producer. No Spark session is needed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lograft.spark import arrow_routes
from lograft.spark.arrow_routes import Piece, gathered, pieces_of
from lograft.spark.schema import SinkColumns
from lograft.spark.values import OptionError

COLUMNS = SinkColumns(
    has_key=False, has_topic=False, has_partition=False, has_headers=False, has_timestamp=False, unused=()
)
NOW_MS = 1_700_000_000_123
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def split(data: dict[str, Any], *, topic: str | None = None, unused: tuple[str, ...] = ()) -> list[Piece]:
    columns = SinkColumns(
        has_key="key" in data,
        has_topic="topic" in data,
        has_partition="partition" in data,
        has_headers="headers" in data,
        has_timestamp="timestamp" in data,
        unused=unused,
    )
    batch = pa.record_batch(data)
    return list(pieces_of(batch, columns, topic=topic, now_ms=NOW_MS))


def values(piece: Piece) -> tuple[str, int | None, list[str]]:
    return piece.topic, piece.partition, piece.rows.column("value").to_pylist()


def test_one_topic_without_partitions_is_one_piece() -> None:
    """A usual job passes its rows on unchanged."""
    assert [values(piece) for piece in split({"value": ["a", "b"]}, topic="t")] == [("t", None, ["a", "b"])]


def test_rows_go_to_the_topic_of_their_column() -> None:
    """Each topic gets its rows in order, in one piece."""
    pieces = split({"value": ["a", "b", "c"], "topic": ["t", "u", "t"]})
    assert [values(piece) for piece in pieces] == [("t", None, ["a", "c"]), ("u", None, ["b"])]
    assert pieces[0].rows.schema.names == ["value"]


def test_topic_option_wins_over_the_column() -> None:
    """The option overrides the column, as in the Kafka connector, so a null topic does not matter."""
    pieces = split({"value": ["a", "b"], "topic": ["u", None]}, topic="t")
    assert [values(piece) for piece in pieces] == [("t", None, ["a", "b"])]


def test_row_without_topic_is_refused() -> None:
    """No row is silently dropped."""
    with pytest.raises(OptionError, match="1 rows have no topic"):
        split({"value": ["a", "b"], "topic": ["t", None]})


def test_wanted_partitions_and_null_ones_are_apart() -> None:
    """For a null partition the key decides; other partitions are kept."""
    data = {"value": ["a", "b", "c", "d"], "partition": pa.array([1, None, 0, 1], pa.int32())}
    assert [values(piece) for piece in split(data, topic="t")] == [
        ("t", 1, ["a", "d"]),
        ("t", None, ["b"]),
        ("t", 0, ["c"]),
    ]


def test_negative_partition_is_refused() -> None:
    """-1 does not silently mean "any"."""
    with pytest.raises(OptionError, match="partitions count from 0"):
        split({"value": ["a"], "partition": pa.array([-1], pa.int32())}, topic="t")


def test_null_timestamps_become_the_time_of_sending() -> None:
    """Create times that the rows have are kept."""
    data = {"value": ["a", "b"], "timestamp": pa.array([5_000, None], pa.timestamp("us", "UTC"))}
    (piece,) = split(data, topic="t")
    assert piece.rows.column("timestamp").to_pylist() == [
        EPOCH + timedelta(milliseconds=5),
        EPOCH + timedelta(milliseconds=NOW_MS),
    ]


def test_other_columns_are_left_out_and_case_does_not_matter() -> None:
    """The producer gets the columns that it knows, under its own names."""
    columns = SinkColumns(
        has_key=True, has_topic=False, has_partition=False, has_headers=False, has_timestamp=False, unused=("offset",)
    )
    batch = pa.record_batch({"Key": [b"k"], "VALUE": [b"v"], "Offset": [1]})
    (piece,) = pieces_of(batch, columns, topic="t", now_ms=NOW_MS)
    assert piece.rows.to_pydict() == {"key": [b"k"], "value": [b"v"]}


def test_empty_batch_gives_nothing() -> None:
    """Spark may pass batches without rows."""
    assert list(pieces_of(pa.record_batch({"value": pa.array([], pa.string())}), COLUMNS, topic="t", now_ms=0)) == []


@settings(deadline=None)
@given(sizes=st.lists(st.integers(0, 300), min_size=1, max_size=40))
def test_pieces_are_bounded_and_lose_nothing(sizes: list[int]) -> None:
    """For any row sizes, pieces stay below the limit unless they are one row, and rows keep their order."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrow_routes, "MAX_PIECE_BYTES", 256)
        rows = [bytes([number % 256]) * size for number, size in enumerate(sizes)]
        pieces = split({"value": pa.array(rows, pa.binary())}, topic="t")
        assert [row for piece in pieces for row in piece.rows.column("value").to_pylist()] == rows
        assert all(piece.rows.num_rows == 1 or piece.rows.nbytes <= 256 for piece in pieces)


@settings(deadline=None)
@given(
    topics=st.lists(st.sampled_from(["a", "b"]), min_size=1, max_size=30),
    seed=st.lists(st.sampled_from([None, 0, 1]), min_size=30, max_size=30),
)
def test_every_row_is_in_exactly_one_piece_in_order(topics: list[str], seed: list[int | None]) -> None:
    """Splitting by topic and partition is a stable partition of the rows."""
    count = len(topics)
    data = {
        "value": [str(number) for number in range(count)],
        "topic": topics,
        "partition": pa.array(seed[:count], pa.int32()),
    }
    found: dict[tuple[str, int | None], list[str]] = {}
    for piece in split(data):
        found.setdefault((piece.topic, piece.partition), []).extend(piece.rows.column("value").to_pylist())
    expected: dict[tuple[str, int | None], list[str]] = {}
    for number, place in enumerate(zip(topics, seed, strict=False)):
        expected.setdefault(place, []).append(str(number))
    assert found == expected


def test_small_batches_are_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches are joined until they are worth sending. The rest comes at the end."""
    monkeypatch.setattr(arrow_routes, "GATHER_BYTES", 16)
    batches = [pa.record_batch({"n": [number]}) for number in range(5)]
    assert [batch.to_pydict()["n"] for batch in gathered(iter(batches))] == [[0, 1], [2, 3], [4]]
    large = pa.record_batch({"n": [1, 2, 3]})
    assert [batch.num_rows for batch in gathered(iter([large, large]))] == [3, 3]
