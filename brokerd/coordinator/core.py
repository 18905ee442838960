# SPDX-License-Identifier: Apache-2.0
"""The border between the coordinator runtime and a core: records, decisions, and what each side may rely on.

Pure, and knows neither side. Groups implement `Core`, and staged ingest will. Source: `docs/coordinator.md` section "Core".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

Command = TypeVar("Command")
Response = TypeVar("Response")
Rec = TypeVar("Rec")
_Command = TypeVar("_Command", contravariant=True)
_Response = TypeVar("_Response", covariant=True)


class Record(NamedTuple):
    """What the log holds. A value of None is a tombstone: it deletes the key."""

    key: bytes
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Decision(Generic[_Response, Rec]):
    """The outcome of a command or a tick.

    Attributes:
        records: what to append as a part of one batch, in order; empty: nothing changes.
        response: the answer once the records, and everything that the decision has seen, are committed.
    """

    records: tuple[Rec, ...]
    response: _Response


class Core(Protocol[_Command, _Response, Rec]):
    """The state machine of one partition during one leadership. The runtime makes it empty and drops it with the leadership.

    Law: the state depends on the replayed records only, and is the same for every compaction of the same log.
    """

    def decide(self, command: _Command, now_ms: int) -> Decision[_Response, Rec]:
        """Decide about a command, without changing anything.

        Args:
            command: the command.
            now_ms: monotonic time in milliseconds.
        """
        ...

    def replay(self, record: Rec) -> None:
        """Apply a record that the log has, committed or not: the only mutator of durable state.

        A record of a key replaces earlier ones of the key, any of which may be missing. A tombstone of an unknown key does nothing.
        """
        ...

    def deadline_ms(self) -> int | None:
        """Return the monotonic time in milliseconds at which `tick` has something to decide; None: nothing is due."""
        ...

    def tick(self, now_ms: int) -> Decision[_Response, Rec] | None:
        """Decide about what is due, without changing durable state; None: nothing.

        It is the first call after loading, whatever `deadline_ms` says: what is not durable, as sessions of members, begins here.

        Args:
            now_ms: monotonic time in milliseconds.
        """
        ...


class RecordCodec(Protocol[Rec]):
    """Translates the records of a core to those of the log and back."""

    def encode(self, record: Rec) -> Record:
        """Return the record of the log."""
        ...

    def decode(self, record: Record) -> Rec:
        """Return the record of the core.

        Raises:
            Exception: this version does not know the record, or it is malformed. The partition is not served then.
        """
        ...
