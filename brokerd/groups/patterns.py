# SPDX-License-Identifier: Apache-2.0
"""Subscriptions by pattern: RE2 expressions that must match the whole name of a topic.

RE2 takes time in proportion to the length of the name, whatever the pattern is; Python's `re` on a broker would let a client stop it.
The pattern `orders` matches the topic `orders` alone, and `orders.*` everything that begins so; `^` and `$` are allowed and change
nothing.

A typical pattern costs 2 us for each name. The most expensive one that the limits allow costs 1 ms, so that whoever has thousands of
names passes them in slices (`SubscribedPatterns.add_topics` takes any number).

Pure. Owns the limits of patterns, and what matches each of them. Source: KIP-848 (subscribed topic regex), github.com/google/re2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import re2  # pyright: ignore[reportMissingTypeStubs]

from brokerd.groups.subscriptions import PatternError

MAX_PATTERN_BYTES: Final = 1_024
"""Bytes of a pattern in UTF-8. A longer one is refused with `PatternTooLongError`."""

MAX_PROGRAM_BYTES: Final = 1024 * 1024
"""Memory in bytes that RE2 may take for one pattern: its program and the states that it remembers while it matches."""

MAX_PROGRAM_INSTRUCTIONS: Final = 512
"""Instructions of a compiled pattern, which bound the time for each byte of a name. More are refused with `PatternTooComplexError`."""

MAX_PATTERNS: Final = 1_000
"""Different patterns of one `SubscribedPatterns`. More are refused with `TooManyPatternsError`."""


class PatternSyntaxError(PatternError):
    """The pattern is empty, or no RE2 expression."""


class PatternTooLongError(PatternError):
    """The pattern has more than `MAX_PATTERN_BYTES`."""


class PatternTooComplexError(PatternError):
    """The compiled pattern is larger than `MAX_PROGRAM_BYTES` or `MAX_PROGRAM_INSTRUCTIONS`."""


class TooManyPatternsError(PatternError):
    """There are `MAX_PATTERNS` different patterns already."""


def compile_pattern(pattern: str) -> Callable[[str], bool]:
    """Return a function that says whether a topic's whole name matches the pattern.

    Raises:
        PatternError: the pattern is wrong or beyond a limit.
    """
    size_bytes = len(pattern.encode(errors="surrogatepass"))
    if size_bytes > MAX_PATTERN_BYTES:
        raise PatternTooLongError(
            f"the pattern has {size_bytes} bytes, and {MAX_PATTERN_BYTES} are allowed: use a shorter one, or several"
        )
    if not pattern:
        raise PatternSyntaxError("the pattern is empty: write .* to subscribe to every topic")
    compiled = _compiled(pattern)
    instructions: int = compiled.programsize
    if instructions > MAX_PROGRAM_INSTRUCTIONS:
        raise PatternTooComplexError(
            f"the pattern compiles to {instructions} instructions, and {MAX_PROGRAM_INSTRUCTIONS} are allowed: "
            "use fewer or smaller repetitions, or several patterns"
        )
    match: Callable[[str], object] = compiled.fullmatch

    def matches(name: str) -> bool:
        return match(name) is not None

    return matches


def _compiled(pattern: str) -> Any:
    # The package has no types.
    engine: Any = re2
    options = engine.Options()
    options.max_mem = MAX_PROGRAM_BYTES
    options.never_capture = True
    # RE2 would write to the standard error of the broker what is raised here.
    options.log_errors = False
    try:
        return engine.compile(pattern, options)
    except (engine.error, UnicodeEncodeError) as error:
        said = _text(error)
        if "too large" in said:
            raise PatternTooComplexError(f"{said}: use fewer or smaller repetitions, or several patterns") from None
        raise PatternSyntaxError(
            f"{said}: patterns are RE2 expressions (github.com/google/re2/wiki/Syntax), without back references "
            "and look-arounds"
        ) from None


def _text(error: Exception) -> str:
    said: object = error.args[0] if error.args else error
    return said.decode(errors="replace") if isinstance(said, bytes) else str(error)


@dataclass(slots=True)
class _Subscribed:
    matches: Callable[[str], bool]
    uses: int = 1
    names: dict[str, None] = field(default_factory=dict[str, None])


class SubscribedPatterns:
    """The patterns of the groups of one coordinator, and which topics match each. The coordinator is the one writer.

    A topic that appears is compared with every pattern, and a pattern that appears with every topic; nothing is compared twice.
    """

    def __init__(self) -> None:
        self._patterns: dict[str, _Subscribed] = {}
        self._names: dict[str, None] = {}

    def subscribe(self, pattern: str) -> tuple[str, ...]:
        """Add one use of the pattern, and return the names that match it, ascending.

        Raises:
            PatternError: the pattern is wrong or beyond a limit; nothing has changed.
        """
        known = self._patterns.get(pattern)
        if known is not None:
            known.uses += 1
            return self.matching(pattern)
        if len(self._patterns) >= MAX_PATTERNS:
            raise TooManyPatternsError(
                f"{MAX_PATTERNS} different patterns are subscribed to: let members of a group share one, or name topics"
            )
        added = _Subscribed(compile_pattern(pattern))
        added.names = {name: None for name in self._names if added.matches(name)}
        self._patterns[pattern] = added
        return self.matching(pattern)

    def unsubscribe(self, pattern: str) -> None:
        """End one use of the pattern; the last one forgets it."""
        known = self._patterns[pattern]
        known.uses -= 1
        if not known.uses:
            del self._patterns[pattern]

    def matching(self, pattern: str) -> tuple[str, ...]:
        """Return the names that match a pattern that is subscribed to, ascending."""
        return tuple(sorted(self._patterns[pattern].names))

    def add_topics(self, names: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """Take note of topics that have appeared. Return for each pattern that matches some of them which ones, ascending."""
        new = sorted(name for name in dict.fromkeys(names) if name not in self._names)
        self._names.update(dict.fromkeys(new))
        changed: dict[str, tuple[str, ...]] = {}
        for pattern, subscribed in self._patterns.items():
            matched = tuple(name for name in new if subscribed.matches(name))
            if matched:
                subscribed.names.update(dict.fromkeys(matched))
                changed[pattern] = matched
        return changed

    def remove_topics(self, names: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """Forget topics that are gone. Return for each pattern that matched some of them which ones, ascending."""
        gone = sorted(name for name in dict.fromkeys(names) if name in self._names)
        for name in gone:
            del self._names[name]
        changed: dict[str, tuple[str, ...]] = {}
        for pattern, subscribed in self._patterns.items():
            matched = tuple(name for name in gone if name in subscribed.names)
            if matched:
                for name in matched:
                    del subscribed.names[name]
                changed[pattern] = matched
        return changed
