# SPDX-License-Identifier: Apache-2.0
"""One member's way from its current assignment to its target: first it gives up, then it gets (KIP-848).

Owns one step, as a function. Partitions that stay keep their assignment epoch; new ones get the epoch that the member reaches, so that
no pair of partition and assignment epoch ever belongs to two members (KAFKA-19974).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from brokerd.groups.records import CurrentValue, Held, Partitions


def effective_target(target: Partitions, topic_ids: frozenset[bytes]) -> Partitions:
    """Return the target without topics to which the member does not subscribe (any more) (KAFKA-19431)."""
    return {topic_id: numbers for topic_id, numbers in target.items() if topic_id in topic_ids}


def reconcile(
    current: CurrentValue,
    *,
    target: Partitions,
    target_epoch: int,
    owned: Partitions | None,
    is_free: Callable[[bytes, int], bool],
) -> CurrentValue:
    """Return the current assignment after one step; the same object if nothing changes.

    Args:
        current: the present one.
        target: effective target.
        target_epoch: epoch of the target.
        owned: what the member owns, by its newest word; None: unknown, so that nothing counts as given up.
        is_free: returns True for a partition that no member holds.
    """
    revoking: Held = current.revoking
    if revoking and owned is not None and not _overlap(owned, revoking):
        revoking = dict[bytes, Mapping[int, int]]()
    leaving = _without(current.assigned, target)
    if leaving:
        revoking = _merged(revoking, leaving)
    kept = _without(current.assigned, leaving) if leaving else current.assigned
    if revoking:
        if not leaving and revoking is current.revoking:
            return current
        return CurrentValue(
            member_epoch=current.member_epoch, previous_epoch=current.previous_epoch, assigned=kept, revoking=revoking
        )
    gained = {
        topic_id: free
        for topic_id, numbers in target.items()
        if (
            free := {
                number: target_epoch
                for number in numbers
                if number not in kept.get(topic_id, ()) and is_free(topic_id, number)
            }
        )
    }
    is_moved = current.member_epoch != target_epoch
    if not is_moved and not gained and not current.revoking:
        return current
    return CurrentValue(
        member_epoch=target_epoch,
        previous_epoch=current.member_epoch if is_moved else current.previous_epoch,
        assigned=_merged(kept, gained),
    )


def is_within(owned: Partitions, held: Held) -> bool:
    """Return True if everything owned is held."""
    return all(number in held.get(topic_id, ()) for topic_id, numbers in owned.items() for number in numbers)


def is_reached(current: CurrentValue, target: Partitions, target_epoch: int) -> bool:
    """Return True if the member has reached its target."""
    if current.revoking or current.member_epoch != target_epoch or len(current.assigned) != len(target):
        return False
    return all(tuple(current.assigned.get(topic_id, ())) == numbers for topic_id, numbers in target.items())


def _overlap(owned: Partitions, held: Held) -> bool:
    return any(number in held.get(topic_id, ()) for topic_id, numbers in owned.items() for number in numbers)


def _without(held: Held, others: Mapping[bytes, tuple[int, ...] | Mapping[int, int]]) -> Held:
    """Return what is held except the others."""
    rest: dict[bytes, Mapping[int, int]] = {}
    for topic_id, numbers in held.items():
        gone = frozenset(others.get(topic_id, ()))
        left = {number: epoch for number, epoch in numbers.items() if number not in gone}
        if left:
            rest[topic_id] = left
    return rest


def _merged(first: Held, second: Held) -> Held:
    """Return both together, partitions in ascending order, topics by id."""
    both: dict[bytes, Mapping[int, int]] = {}
    for topic_id in sorted({*first, *second}):
        numbers = {**first.get(topic_id, {}), **second.get(topic_id, {})}
        both[topic_id] = dict(sorted(numbers.items()))
    return both
