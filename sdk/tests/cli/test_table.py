# SPDX-License-Identifier: Apache-2.0
"""Tables fit the terminal, and never split a name, an address or an id."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from lograft.cli.output import counted, format_size
from lograft.cli.table import format_table

WORDS = st.text(st.sampled_from("abc:0.-"), min_size=1, max_size=24)
TEXTS = st.lists(WORDS, min_size=1, max_size=4).map(" ".join)


def test_numbers_stand_to_the_right_and_nothing_is_a_dash() -> None:
    """The look of a table."""
    assert format_table(("name", "count"), [("a", 7), ("long", 12), ("x", None)], width=80) == [
        "name  count",
        "a         7",
        "long     12",
        "x         -",
    ]
    assert format_table(("name",), [], width=10) == ["name"]


def test_columns_go_in_the_given_order_until_the_others_fit() -> None:
    """No more than necessary goes."""
    columns, rows = ("topic", "epoch", "id"), [("orders", 3, "f" * 32)]
    assert "epoch" in format_table(columns, rows, width=20, may_go=("id", "epoch"))[0]
    assert format_table(columns, rows, width=8, may_go=("id", "epoch")) == ["topic", "orders"]
    assert "id" in format_table(columns, rows, width=None, may_go=("id", "epoch"))[0]


def test_cells_fold_at_spaces_and_else_rows_become_blocks() -> None:
    """An address is whole in both."""
    rows = [(1, "127.0.0.1:9640", "it does not fetch any more")]
    lines = format_table(("node", "address", "what is wrong"), rows, width=34)
    assert max(map(len, lines)) <= 34
    assert any("127.0.0.1:9640" in line for line in lines)
    assert format_table(("node", "address", "what is wrong"), rows, width=20) == [
        "node 1",
        "  address        127.0.0.1:9640",
        "  what is wrong  it does not fetch any more",
    ]


@settings(deadline=None)
@given(st.lists(st.tuples(WORDS, TEXTS, st.none() | st.integers(0, 10**9)), max_size=4), st.integers(10, 100))
def test_every_word_is_whole_and_lines_fit_if_they_can(rows: list[tuple[str, str, int | None]], width: int) -> None:
    """For any cells and width: all words are there, in one piece; columns are no wider than the terminal."""
    lines = format_table(("name", "some text", "n"), rows, width=width)
    words = {word for line in lines for word in line.split()}
    assert {word for row in rows for cell in row[:2] for word in str(cell).split()} <= words
    is_table = not any(line.startswith("  some text") for line in lines)
    if rows and is_table:
        assert max(map(len, lines)) <= width


def test_plurals_and_sizes() -> None:
    """One is singular, nothing else is."""
    assert [counted(n, "topic") for n in (0, 1, 2)] == ["0 topics", "1 topic", "2 topics"]
    assert counted(3, "log directory", "log directories") == "3 log directories"
    assert [format_size(n) for n in (0, 1023, 1024, 1536 * 1024, 1 << 60)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "1.5 MiB",
        "1024.0 PiB",
    ]
