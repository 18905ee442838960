# SPDX-License-Identifier: Apache-2.0
"""The ledger of metadata changes finds lost changes and changes that were carried out twice."""

from __future__ import annotations

from integration_tests.harness.history.ledger import Ledger


def test_ledger_notices_lost_and_repeated_changes() -> None:
    """Each kind of damage is found. A change with an unknown outcome may exist or not."""
    ledger = Ledger()
    for number in range(3):
        ledger.topic_acknowledged(f"t{number}", bytes([number]))
    topics = {f"t{number}": bytes([number]) for number in range(3)}
    written, unknown, refused = (ledger.take_register() for _ in range(3))
    assert written is not None
    assert unknown is not None
    assert refused is not None
    ledger.write_acknowledged(written)
    ledger.write_unknown(unknown)
    ledger.write_refused(refused)
    values = {"t0": 1, "t1": 0, "t2": 0}
    assert ledger.compare(topics, values) == []
    assert ledger.compare(topics, values | {"t1": 1}) == []
    assert ledger.compare(topics, values | {"t0": 0})
    assert ledger.compare(topics, values | {"t1": 2})
    assert ledger.compare(topics, values | {"t2": 1})
    assert ledger.compare({name: topics[name] for name in ("t0", "t1")}, {"t0": 1, "t1": 0})
    assert ledger.compare(topics | {"t1": b"other"}, values)
    assert ledger.compare(topics | {"t1": topics["t0"]}, values)
    assert ledger.compare(topics | {"t9": b"9"}, values)
    ledger.topic_unknown("t9")
    assert ledger.compare(topics | {"t9": b"9"}, values) == []
    ledger.topic_repeated("t10")
    assert len(ledger.problems) == 1


def test_ledger_gives_a_retired_register_to_nobody() -> None:
    """A write that may still take effect would look like a later one. Once it cannot, the register is used again."""
    ledger = Ledger()
    ledger.topic_acknowledged("t", b"t")
    register = ledger.take_register()
    assert register is not None
    assert ledger.take_register() is None
    ledger.write_unknown(register)
    assert ledger.take_register() is None
    ledger.release(register)
    assert register.allowed() == {0, 1}
    assert ledger.take_register() is register
    ledger.write_acknowledged(register)
    assert register.allowed() == {2}
