# SPDX-License-Identifier: Apache-2.0
"""The feature level by the admin clients and the command, against a real broker that knows only one level."""

from __future__ import annotations

import json

import pytest
from lograft import Admin, aio
from lograft.cli import main
from lograft.errors import InvalidRequestError, UsageError


def test_level_is_described_kept_and_not_moved_out_of_range(admin: Admin) -> None:
    """The current level may be requested again. A lower or unknown one is refused with advice."""
    found = admin.describe_feature_level()
    assert (found.level, found.controller_max_level) == (1, 1)
    assert set(found.brokers.values()) == {(1, 1)}
    admin.update_feature_level(1)
    with pytest.raises(InvalidRequestError, match="never goes back"):
        admin.update_feature_level(0)
    with pytest.raises(InvalidRequestError, match="install a newer version"):
        admin.update_feature_level(2, validate_only=True)
    with pytest.raises(UsageError, match="level"):
        admin.update_feature_level(2**31)
    assert admin.describe_feature_level() == found


async def test_asyncio_client_describes_and_updates_it(bootstrap: str) -> None:
    """The same calls through `lograft.aio`."""
    async with aio.Admin(bootstrap) as admin:
        await admin.update_feature_level((await admin.describe_feature_level()).level)


def test_command_describes_and_upgrades(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`lograft features`: table, JSON, the same level again, a refusal."""
    monkeypatch.setenv("LOGRAFT_BOOTSTRAP", bootstrap)

    def run(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as end:
            main(arguments)
        assert isinstance(end.value.code, int)
        return end.value.code, capsys.readouterr().out

    assert run("features", "describe")[0] == 0
    assert json.loads(run("features", "describe", "--json")[1])["level"] == 1
    assert run("features", "upgrade", "1") == (0, "the cluster runs at feature level 1\n")
    assert run("features", "upgrade", "1", "--validate-only")[1] == "the cluster could run at feature level 1\n"
    assert run("features", "upgrade", "2")[0] == 1
