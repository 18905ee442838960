# SPDX-License-Identifier: Apache-2.0
"""Subscriptions by pattern: whole names, typed refusals, bounded programs, and matches that follow the topics."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brokerd.groups import patterns
from brokerd.groups.patterns import (
    MAX_PATTERN_BYTES,
    PatternSyntaxError,
    PatternTooComplexError,
    PatternTooLongError,
    SubscribedPatterns,
    TooManyPatternsError,
    compile_pattern,
)
from brokerd.groups.subscriptions import PatternError

NAMES = st.text(alphabet="ab.-", min_size=1, max_size=6)
SIMPLE = st.lists(
    st.sampled_from(["a", "b", r"\.", "-", "a*", "[ab]+", "(a|b)", ".", "b?", "^", "$"]), min_size=1, max_size=5
)


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("orders", ["orders"], ["orders-eu", "my-orders", "Orders"]),
        ("orders.*", ["orders", "orders-eu"], ["my-orders"]),
        ("^orders$", ["orders"], ["orders-eu"]),
        ("^orders", ["orders"], ["orders-eu"]),
        (r"team-\d+\.(in|out)", ["team-7.in", "team-12.out"], ["team-.in", "team-7.in2", "team-7xin"]),
        ("a|b", ["a", "b"], ["ab", "ba"]),
        ("(?i)orders", ["ORDERS"], ["order"]),
    ],
)
def test_a_pattern_matches_whole_names(pattern: str, yes: list[str], no: list[str]) -> None:
    """A pattern matches the whole name or not at all, also with alternatives and anchors."""
    matches = compile_pattern(pattern)
    assert [name for name in (*yes, *no) if matches(name)] == yes


@settings(max_examples=200, deadline=None)
@given(SIMPLE, NAMES)
def test_simple_patterns_mean_what_they_mean_in_python(parts: list[str], name: str) -> None:
    """Where RE2 and Python have the same syntax, a pattern matches exactly what Python's full match does."""
    pattern = "".join(parts)
    assert compile_pattern(pattern)(name) == (re.fullmatch(pattern, name) is not None)


@pytest.mark.parametrize("pattern", ["(", "a)", "[a", "*a", "(?=a)", r"(a)\1", "a{2,1}", "(?P<a", "\ud800", ""])
def test_what_is_no_pattern_is_refused(pattern: str, capfd: pytest.CaptureFixture[str]) -> None:
    """A wrong pattern is a typed error that says why, and RE2 writes nothing to the broker's output."""
    with pytest.raises(PatternSyntaxError, match=r"patterns are RE2|write \.\*"):
        compile_pattern(pattern)
    assert capfd.readouterr() == ("", "")


def test_a_long_pattern_is_refused() -> None:
    """The limit counts bytes, not characters."""
    assert compile_pattern("|".join(["ab"] * 341))("ab")
    with pytest.raises(PatternTooLongError, match="1025 bytes"):
        compile_pattern("a" * (MAX_PATTERN_BYTES + 1))
    with pytest.raises(PatternTooLongError, match="1026 bytes"):
        compile_pattern("é" * 513)


@pytest.mark.parametrize("pattern", ["(?:a?b?){500}", "a{1000}", r"\pL{1,900}", r"(?:\pL{100}){9}"])
def test_a_pattern_with_a_large_program_is_refused(pattern: str, capfd: pytest.CaptureFixture[str]) -> None:
    """A short pattern can have a program that takes memory, or milliseconds for each name. It is refused."""
    with pytest.raises(PatternTooComplexError, match="smaller repetitions"):
        compile_pattern(pattern)
    assert capfd.readouterr() == ("", "")


def test_a_pattern_that_stops_a_backtracking_matcher_is_answered() -> None:
    """A pattern that takes Python's matcher 2^60 steps takes RE2 none worth mentioning."""
    assert not compile_pattern("(a|a)*(a|a)*b")("a" * 200 + "c")


def test_matches_follow_topics_and_subscriptions() -> None:
    """A random walk of topics and subscriptions: what matches is what a fresh comparison finds, and each change is reported once."""
    rng = random.Random(7)
    known, subscribed = SubscribedPatterns(), dict[str, int]()
    names, seen = set[str](), {pattern: set[str]() for pattern in ("a.*", ".*b", "[ab]+", "c", ".*")}
    for _ in range(600):
        name, pattern = "".join(rng.choices("abc", k=rng.randint(1, 3))), rng.choice(sorted(seen))
        step = rng.randrange(4)
        if step == 0:
            seen[pattern] = set(known.subscribe(pattern))
            subscribed[pattern] = subscribed.get(pattern, 0) + 1
        elif step == 1 and pattern in subscribed:
            known.unsubscribe(pattern)
            subscribed[pattern] -= 1
            if not subscribed[pattern]:
                del subscribed[pattern]
        elif step == 2:
            for changed, new in known.add_topics([name, name]).items():
                assert not seen[changed].intersection(new)
                seen[changed].update(new)
            names.add(name)
        else:
            for changed, gone in known.remove_topics([name]).items():
                assert seen[changed].issuperset(gone)
                seen[changed].difference_update(gone)
            names.discard(name)
        for each in subscribed:
            expected = {name for name in names if re.fullmatch(each, name)}
            assert known.matching(each) == tuple(sorted(expected))
            assert seen[each] == expected
        for each in set(seen) - set(subscribed):
            with pytest.raises(KeyError):
                known.matching(each)


def test_each_name_is_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic that appears is compared with each pattern once; what is known is not compared again."""
    compared: list[str] = []

    def counting(pattern: str):
        def matches(name: str) -> bool:
            compared.append(f"{pattern} {name}")
            return name.startswith(pattern)

        return matches

    monkeypatch.setattr(patterns, "compile_pattern", counting)
    known = SubscribedPatterns()
    known.subscribe("a")
    known.add_topics(["a1", "b1"])
    known.subscribe("b")
    known.subscribe("a")
    known.add_topics(["a1", "a2"])
    known.remove_topics(["a1"])
    assert compared == ["a a1", "a b1", "b a1", "b b1", "a a2", "b a2"]


def test_the_number_of_patterns_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """One pattern too many is refused and leaves nothing behind; a further use of a known one is not."""
    monkeypatch.setattr(patterns, "MAX_PATTERNS", 2)
    known = SubscribedPatterns()
    known.subscribe("a")
    known.subscribe("b")
    with pytest.raises(TooManyPatternsError, match="share one"):
        known.subscribe("c")
    known.subscribe("b")
    known.unsubscribe("a")
    assert known.subscribe("c") == ()
    with pytest.raises(PatternError):
        SubscribedPatterns().subscribe("(")
