# SPDX-License-Identifier: Apache-2.0
"""The memory limit of the container, the budgets that follow from it, and when memory is given back."""

from __future__ import annotations

from pathlib import Path

import pytest

from brokerd.memory.process_memory import (
    CHECK_MS,
    CHECK_MS_MAX,
    TRIM_FROM_BYTES,
    TrimRule,
    memory_limit_bytes,
    physical_bytes,
)
from brokerd.process.settings import BrokerSettings, budget_bytes
from metaquorum.process.settings import Address, SettingsError

MIB = 1024 * 1024
LIMIT_BYTES = 64 * MIB


def write(path: Path, text: str) -> None:
    """Write a file and the directories above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("own_groups", "files"),
    [
        ("0::/pod/container\n", {"pod/container/memory.max": "max", "pod/memory.max": str(LIMIT_BYTES)}),
        ("0::/pod/container\n", {"memory.max": str(LIMIT_BYTES)}),
        ("0::/../..\n", {"memory.max": str(LIMIT_BYTES)}),
        (
            "4:cpu,memory:/docker/a\n3:cpu:/\n",
            {
                "memory/docker/a/memory.limit_in_bytes": str(LIMIT_BYTES),
                "memory/memory.limit_in_bytes": "9223372036854771712",
            },
        ),
        ("4:memory:/docker/a\n", {"memory/memory.limit_in_bytes": str(LIMIT_BYTES)}),
        ("", {"memory.max": str(LIMIT_BYTES)}),
    ],
)
def test_the_least_limit_of_all_groups_counts(tmp_path: Path, own_groups: str, files: dict[str, str]) -> None:
    """Version 2 and 1, at the own group, at one above it, or at the root as a container sees it."""
    write(tmp_path / "own", own_groups)
    for name, text in files.items():
        write(tmp_path / "groups" / name, text + "\n")
    assert memory_limit_bytes(cgroups=tmp_path / "groups", own_groups=tmp_path / "own") == LIMIT_BYTES


@pytest.mark.parametrize("limit", ["max", "9223372036854771712", None])
def test_without_a_limit_the_machine_is_it(tmp_path: Path, limit: str | None) -> None:
    """No limit, one that bounds nothing, and no control groups at all."""
    if limit is not None:
        write(tmp_path / "groups/memory.max", limit)
    found = memory_limit_bytes(cgroups=tmp_path / "groups", own_groups=tmp_path / "none")
    assert found == physical_bytes() > 0


@pytest.mark.parametrize(
    ("memory_mib", "budget_mib"), [(128, 32), (512, 32), (1_024, 64), (2_048, 128), (4_096, 256), (65_536, 256)]
)
def test_a_budget_is_a_share_of_the_limit_within_bounds(memory_mib: int, budget_mib: int) -> None:
    """A sixteenth. A small container still gets what a usual batch needs, and a large one no more than is useful."""
    assert budget_bytes(memory_mib * MIB, least_bytes=32 * MIB) == budget_mib * MIB


def test_settings_name_the_budgets_or_leave_them_to_the_limit(tmp_path: Path) -> None:
    """Named values count. A value that is too small is refused with the name of the option."""

    def settings(fetch_buffer: int | None, inflate: int | None) -> BrokerSettings:
        return BrokerSettings(
            data_directory=tmp_path,
            node_id=1,
            listen=Address(host="127.0.0.1", port=0),
            quorum_addresses=("127.0.0.1:1",),
            fetch_buffer_max_bytes=fetch_buffer,
            inflate_max_bytes=inflate,
        )

    named = settings(9 * MIB, 10 * MIB)
    assert (named.fetch_buffer_bytes, named.inflate_bytes) == (9 * MIB, 10 * MIB)
    left = settings(None, None)
    assert left.fetch_buffer_bytes >= 32 * MIB
    assert left.inflate_bytes >= 64 * MIB
    with pytest.raises(SettingsError, match="--fetch-buffer-max-bytes 1 "):
        settings(1, None)
    with pytest.raises(SettingsError, match="--inflate-max-bytes 1 "):
        settings(None, 1)


def test_a_burst_that_ends_between_two_looks_is_given_back() -> None:
    """Memory in use at the first trim is trimmed later without further growth. Trims without effect become rarer."""
    rule = TrimRule()
    idle, burst = 90 * MIB, 400 * MIB
    assert rule.is_due(idle)
    rule.on_trimmed(idle, idle)
    assert not rule.is_due(idle + TRIM_FROM_BYTES - 1)
    assert rule.is_due(burst)
    rule.on_trimmed(burst, burst)
    assert rule.is_due(burst)
    assert rule.pause_ms > CHECK_MS
    for _ in range(10):
        rule.on_trimmed(burst, burst)
    assert rule.pause_ms == CHECK_MS_MAX
    rule.on_trimmed(burst, idle)
    assert rule.pause_ms == CHECK_MS
    assert not rule.is_due(idle)
