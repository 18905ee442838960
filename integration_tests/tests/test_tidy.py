# SPDX-License-Identifier: Apache-2.0
"""The house lint: rules that ruff, pyright and import-linter do not know, over the syntax tree and the text of a file.

Each rule is a function from a source file to its problems. It is itself tested on a snippet that breaks it and on one that keeps it. A
file that must break a rule for a while is listed in EXCEPTIONS with the day and the reason.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("proto", "storage", "metaquorum", "brokerd", "sdk", "integration_tests", "benchmarks", "deploy", ".ci")
GENERATED = ("sdk/lograft/v1/", "sdk/lograft/internal/")
BUILD_FOLDERS = frozenset({"__pycache__", "build", "dist", "gen", "target", "node_modules"})
COMMENTED_SUFFIXES = frozenset({".py", ".proto", ".go", ".java", ".js", ".sh", ".yaml", ".yml"})
NOT_CUT_OUT = ("brokerd/api/", "brokerd/replication/", "brokerd/replica/")
"""Folders in which cores are still mixed with shells. There, modules that call themselves pure are not checked yet."""


def _pure_modules() -> Iterator[str]:
    """Return the modules of the import contracts about purity, which are the only list of cores."""
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    for contract in linter["contracts"]:
        if contract["name"].startswith("pure "):
            yield from contract["source_modules"]


def _path(module: str) -> str:
    """Return the path of a module, or of a package with a slash at its end."""
    path = ("sdk/" if module.startswith("lograft.") else "") + module.replace(".", "/")
    return f"{path}/" if (ROOT / path).is_dir() else f"{path}.py"


CORES = tuple(map(_path, _pure_modules()))

LICENSE_WITHIN_LINES = 3
LICENSE = "SPDX-License-Identifier: Apache-2.0"
IMPURE_BUILTINS = frozenset({"open", "print", "input", "eval", "exec", "hash", "breakpoint"})
IMPURE_MODULES = (
    *(
        "asyncio",
        "concurrent",
        "datetime",
        "google",
        "grpc",
        "io",
        "logging",
        "multiprocessing",
        "os",
        "pathlib",
        "queue",
    ),
    *("random", "secrets", "select", "selectors", "shutil", "signal", "socket", "subprocess", "sys", "tempfile"),
    *("threading", "time", "uuid", "lograft.v1", "lograft.internal"),
)
WIRE_MODULES = ("google", "lograft.v1")
"""Modules that cores of storage may know, because the bytes of batches are their subject."""
ORDER_FREE = frozenset({"sorted", "len", "min", "max", "sum", "any", "all", "set", "frozenset", "bool"})
ORDER_TAKING = frozenset({"list", "tuple", "iter", "enumerate", "zip", "map", "filter", "reversed", "dict"})
VAGUE_NAME = re.compile(r"(?:Manager|Util|Utils|Helper|Helpers|Impl)$")
VAGUE_STEM = re.compile(r"(?:^|_)(?:manager|utils?|helpers?|impl|misc|common)$")
CALLS_ITSELF_PURE = re.compile(r"(?:^|[.;:]\s)Pure(?:\.|;|: (?!`))")
DOTTED = re.compile(r"\b\w+(?:[./]\w+)+")
LEFTOVER = re.compile(r"\b(?:" + "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK")) + r")\b")

EXCEPTIONS: dict[tuple[str, str], str] = {
    ("brokerd/replica/manager.py", "names_say_something"): "2026-11-26: ReplicaManager is Kafka's word for it",
}
"""(path, rule) of a file that may break a rule: the day and the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A file: its path from the root of the repository, and its text."""

    path: str
    text: str

    @property
    def is_python(self) -> bool:
        """True for a Python file."""
        return self.path.endswith(".py")

    @property
    def is_core(self) -> bool:
        """True for a file of a pure core, its tests aside."""
        return self.is_python and self.path.startswith(CORES) and "/tests/" not in self.path

    @property
    def tree(self) -> ast.Module:
        """The syntax tree of a Python file; an empty one for others."""
        return parsed(self.text if self.is_python else "")

    @property
    def nodes(self) -> Iterator[ast.AST]:
        """Every node of the syntax tree."""
        return ast.walk(self.tree)


@cache
def parsed(text: str) -> ast.Module:
    """Return the syntax tree of a Python file, parsed once for all rules."""
    return ast.parse(text)


Problem = str
Rule = Callable[[Source], list[Problem]]


def license_line(source: Source) -> list[Problem]:
    """Every source file says its licence at the top."""
    head = source.text.splitlines()[:LICENSE_WITHIN_LINES]
    return [] if any(LICENSE in line for line in head) else [f"no {LICENSE!r} at the top"]


def module_docstring(source: Source) -> list[Problem]:
    """Every module says what it owns."""
    if not source.is_python:
        return []
    return [] if ast.get_docstring(source.tree) else ["no module docstring"]


def docstring_of_tests(source: Source) -> list[Problem]:
    """Every test says the property that it shows."""
    return [
        f"line {node.lineno}: {node.name} does not say what it shows"
        for node in source.nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and Path(source.path).name.startswith("test_")
        and node.name.startswith("test_")
        and ast.get_docstring(node) is None
    ]


def core_purity(source: Source) -> list[Problem]:
    """A core has no clock, no I/O, no randomness, and no hash that changes from run to run."""
    found: list[Problem] = []
    allowed = WIRE_MODULES if source.path.startswith("storage/") else ()
    for node in source.nodes if source.is_core else ():
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_BUILTINS:
            found.append(f"line {node.lineno}: {node.func.id}() in a core")
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            found += [
                f"line {node.lineno}: import of {name} in a core"
                for name in names
                if any(
                    name == module or name.startswith(f"{module}.")
                    for module in IMPURE_MODULES
                    if module not in allowed
                )
            ]
    return found


def purity_is_checked(source: Source) -> list[Problem]:
    """A module that calls itself pure stands in an import contract about purity."""
    if (
        not source.is_python
        or source.is_core
        or source.path.startswith(NOT_CUT_OUT)
        or re.search("/test(s|ing)/", source.path)
    ):
        return []
    first = ast.get_docstring(source.tree) or ""
    return ["calls itself pure, and no import contract says so"] if CALLS_ITSELF_PURE.search(first) else []


def core_set_order(source: Source) -> list[Problem]:
    """A core never depends on the order of a set: it sorts first."""
    if not source.is_core:
        return []
    sets, free = _names_of_sets(source.tree), _order_free_comprehensions(source.tree)
    found: list[Problem] = []
    for node in source.nodes:
        walked: list[ast.expr] = []
        if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
            walked = [node.iter]
        elif isinstance(node, ast.Starred):
            walked = [node.value]
        elif isinstance(node, ast.Call):
            takes_order = isinstance(node.func, ast.Name) and node.func.id in ORDER_TAKING
            joins = isinstance(node.func, ast.Attribute) and node.func.attr in ("join", "extend")
            pops = isinstance(node.func, ast.Attribute) and node.func.attr == "pop" and not node.args
            walked = [node.func.value] if pops and isinstance(node.func, ast.Attribute) else []
            walked += node.args if takes_order or joins else []
        found += [
            f"line {each.lineno}: depends on the order of a set ({ast.unparse(each)})"
            for each in walked
            if _is_set(each, sets) and each not in free
        ]
    return sorted(set(found))


def _order_free_comprehensions(tree: ast.AST) -> set[ast.expr]:
    """Return the iterables inside `sorted(... for ...)`, set comprehensions and similar, whose order does not matter."""
    free: set[ast.expr] = set()
    for node in ast.walk(tree):
        inner: list[ast.expr] = [node] if isinstance(node, ast.SetComp) else []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ORDER_FREE:
            inner += node.args
        for each in inner:
            if isinstance(each, ast.GeneratorExp | ast.SetComp | ast.ListComp):
                free |= {generator.iter for generator in each.generators}
    return free


def _names_of_sets(tree: ast.AST) -> set[str]:
    """Return the names and attributes that are annotated or assigned as sets somewhere in the file."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and _is_set_type(node.annotation):
            names.add(ast.unparse(node.target))
        elif isinstance(node, ast.arg) and node.annotation is not None and _is_set_type(node.annotation):
            names.add(node.arg)
        elif isinstance(node, ast.Assign) and _is_set(node.value, set()):
            names |= {ast.unparse(target) for target in node.targets}
    return names | {f"self.{name}" for name in names if "." not in name}


def _is_set_type(annotation: ast.expr) -> bool:
    return re.match(r"(?:set|frozenset|AbstractSet|Set|MutableSet)\b", ast.unparse(annotation).strip("'\"")) is not None


def _is_set(value: ast.expr, names: set[str]) -> bool:
    if isinstance(value, ast.Set | ast.SetComp):
        return True
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
        return value.func.id in ("set", "frozenset")
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.BitOr | ast.BitAnd | ast.Sub | ast.BitXor):
        return _is_set(value.left, names) or _is_set(value.right, names)
    return isinstance(value, ast.Name | ast.Attribute) and ast.unparse(value) in names


def no_sleep(source: Source) -> list[Problem]:
    """Nothing waits for a length of time with time.sleep: wait for a condition, with a deadline."""
    found = [f"line {node.lineno}: time.sleep" for node in _calls(source, {"time.sleep"})]
    imports = (node for node in source.nodes if isinstance(node, ast.ImportFrom) and node.module == "time")
    return found + [f"line {each.lineno}: sleep from time" for each in imports if "sleep" in ast.unparse(each)]


def no_local_now(source: Source) -> list[Problem]:
    """Wall-clock time is milliseconds since 1970, from one clock: no datetime.now and the like."""
    names = {
        f"{owner}{name}"
        for owner in ("datetime.", "datetime.datetime.", "date.")
        for name in ("now", "utcnow", "today")
    }
    return [f"line {node.lineno}: {ast.unparse(node.func)}" for node in _calls(source, names)]


def _calls(source: Source, names: set[str]) -> Iterator[ast.Call]:
    return (node for node in source.nodes if isinstance(node, ast.Call) and ast.unparse(node.func) in names)


def names_say_something(source: Source) -> list[Problem]:
    """Classes and files are called after what they are."""
    found = [
        f"line {node.lineno}: class {node.name}"
        for node in source.nodes
        if isinstance(node, ast.ClassDef) and VAGUE_NAME.search(node.name)
    ]
    stem = Path(source.path).stem
    return found + ([f"file name {stem}"] if source.is_python and VAGUE_STEM.search(stem) else [])


def log_is_the_data_log(source: Source) -> list[Problem]:
    """The logging object is `logger`: `log` is a partition's log."""
    return [
        f"line {node.lineno}: {ast.unparse(node.targets[0])} = logging.getLogger(...)"
        for node in source.nodes
        if isinstance(node, ast.Assign)
        and ast.unparse(node.value).startswith("logging.getLogger")
        and ast.unparse(node.targets[0]) != "logger"
    ]


def no_leftovers(source: Source) -> list[Problem]:
    """What is left to do is an issue, not a comment."""
    lines = source.text.splitlines()
    return [f"line {number}: {line.strip()}" for number, line in enumerate(lines, start=1) if LEFTOVER.search(line)]


RULES: tuple[Rule, ...] = (
    license_line,
    module_docstring,
    docstring_of_tests,
    core_purity,
    purity_is_checked,
    core_set_order,
    no_sleep,
    no_local_now,
    names_say_something,
    log_is_the_data_log,
    no_leftovers,
)


@cache
def sources() -> list[Source]:
    """Return the source files of the project: neither generated nor built."""
    found: list[Source] = []
    for path in sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*")):
        name = path.relative_to(ROOT).as_posix()
        built = BUILD_FOLDERS.intersection(path.relative_to(ROOT).parts) or name.startswith(GENERATED)
        if path.is_file() and path.suffix in COMMENTED_SUFFIXES and not built:
            found.append(Source(path=name, text=path.read_text()))
    return found


def unimported(files: list[Source], other_texts: Iterable[str] = ()) -> list[str]:
    """Return the modules that no other file names: dead code, or a missing test.

    A module is named by an import, or by its dotted name or its path in a text (lazy imports, entry points, make).
    """
    named: dict[str, set[str]] = {}
    for path, text in [*((each.path, each.text) for each in files), *(("", text) for text in other_texts)]:
        for name in _named(path, text):
            named.setdefault(name, set()).add(path)
    lost: list[str] = []
    for source in files:
        stem = Path(source.path).stem
        is_entry = stem in ("__init__", "__main__", "conftest") or stem.startswith("test_")
        if source.is_python and not is_entry and not named.get(_module(source.path), set()) - {source.path}:
            lost.append(source.path)
    return lost


def _module(path: str) -> str:
    return path.removeprefix("sdk/").removesuffix(".py").replace("/", ".")


def _named(path: str, text: str) -> set[str]:
    """Return every dotted name in a text, with its prefixes, and what `from ... import` names in a Python file."""
    dotted = {name.removesuffix(".py").replace("/", ".").removeprefix("sdk.") for name in DOTTED.findall(text)}
    for node in ast.walk(parsed(text)) if path.endswith(".py") else ():
        if isinstance(node, ast.ImportFrom):
            above = _module(path).split(".")[: -node.level] if node.level else []
            package = ".".join([*above, *([node.module] if node.module else [])])
            dotted |= {f"{package}.{alias.name}" for alias in node.names}
    return {".".join(name.split(".")[:depth]) for name in dotted for depth in range(2, name.count(".") + 2)}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_file_keeps_the_rule(rule: Rule) -> None:
    """Every source file keeps the rule, but for the dated exceptions."""
    broken = [
        f"{source.path}: {problem}"
        for source in sources()
        for problem in rule(source)
        if (source.path, rule.__name__) not in EXCEPTIONS
    ]
    assert not broken, f"{rule.__doc__}\n" + "\n".join(broken)


def test_every_module_is_used() -> None:
    """Some other file imports or names each module."""
    others = [(ROOT / name).read_text() for name in ("pyproject.toml", "sdk/pyproject.toml", "Makefile")]
    lost = unimported(sources(), others)
    assert not lost, "\n".join(lost)


def test_exceptions_are_needed_and_dated() -> None:
    """An exception names a file that breaks the rule, and gives the day and a reason."""
    by_path, by_name = {each.path: each for each in sources()}, {rule.__name__: rule for rule in RULES}
    for (path, name), reason in EXCEPTIONS.items():
        assert by_name[name](by_path[path]), f"{path} keeps {name}: drop the exception"
        assert re.match(r"\d{4}-\d\d-\d\d: .", reason), f"{path}, {name}: {reason!r} has no day"


CORE = "brokerd/partition/state.py"
SHELL = "brokerd/replication/host.py"


@pytest.mark.parametrize(
    ("rule", "path", "bad", "good"),
    [
        (license_line, "a.yaml", "kind: x\n", f"# {LICENSE}\nkind: x\n"),
        (module_docstring, SHELL, f"# {LICENSE}\nx = 1\n", f'# {LICENSE}\n"""What."""\n'),
        (docstring_of_tests, "test_a.py", "def test_a(): pass\n", 'def test_a():\n    """What."""\n'),
        (core_purity, CORE, "print(1)\n", "self.print(1)\n"),
        (core_purity, CORE, "x = hash(y)\n", "x = crc(y)\n"),
        (core_purity, CORE, "import time\n", "import timeline\n"),
        (core_purity, CORE, "from lograft.v1 import log_pb2\n", "from lograft.wire.codes import ErrorCode\n"),
        (purity_is_checked, "storage/log/log.py", '"""What. Pure."""\n', '"""Not pure."""\n'),
        (core_set_order, CORE, "for x in {1, 2}: pass\n", "for x in sorted({1, 2}): pass\n"),
        (core_set_order, CORE, "isr: set[int]\n[x for x in isr]\n", "isr: set[int]\n{x for x in isr}\n"),
        (core_set_order, CORE, "a = set()\nlist(a)\n", "a = set()\nsorted(x for x in a)\n"),
        (
            core_set_order,
            CORE,
            "def f(a: frozenset[int]):\n    return [*a]\n",
            "def f(a: list[int]):\n    return [*a]\n",
        ),
        (
            core_set_order,
            CORE,
            "class A:\n    b: set[int]\n    def f(self):\n        self.b.pop()\n",
            "b = [1]\nb.pop()\n",
        ),
        (core_set_order, CORE, "for x in set(a) - set(b): pass\n", "for x in a - b: pass\n"),
        (no_sleep, SHELL, "time.sleep(1)\n", "event.wait(1)\n"),
        (no_sleep, SHELL, "from time import sleep\n", "from time import monotonic\n"),
        (no_local_now, SHELL, "datetime.now(UTC)\n", "now()\n"),
        (no_local_now, SHELL, "datetime.datetime.utcnow()\n", "datetime.datetime.fromtimestamp(0, UTC)\n"),
        (names_say_something, SHELL, "class LogManager: pass\n", "class LogManagement: pass\n"),
        (names_say_something, "brokerd/log_utils.py", "x = 1\n", ""),
        (log_is_the_data_log, SHELL, "log = logging.getLogger(__name__)\n", "logger = logging.getLogger(__name__)\n"),
        (no_leftovers, "a.go", "// TO" + "DO: later\n", "// todos\n"),
    ],
)
def test_rule_finds_the_bad_and_passes_the_good(rule: Rule, path: str, bad: str, good: str) -> None:
    """Each rule finds a problem in a snippet that breaks it, and none in one that keeps it."""
    assert rule(Source(path=path, text=bad))
    assert rule(Source(path=path, text=good)) == [] or good == ""


def test_core_rules_leave_shells_and_tests_alone() -> None:
    """Shells and tests of cores may do what a core must not."""
    text = "import time\nprint(time.time())\nfor x in {1, 2}: pass\n"
    for path in (SHELL, "brokerd/partition/tests/test_state.py"):
        source = Source(path=path, text=text)
        assert core_purity(source) + core_set_order(source) == []


def test_unimported_module_is_found() -> None:
    """A module that no file names is found. An import, a lazy import and a command line each name it."""
    files = [
        Source(path="brokerd/dead.py", text=""),
        Source(path="brokerd/imported.py", text=""),
        Source(path="brokerd/lazy.py", text=""),
        Source(path="brokerd/relative.py", text=""),
        Source(
            path="brokerd/server.py",
            text="from brokerd import imported\nLAZY = 'brokerd.lazy'\nfrom . import relative",
        ),
        Source(path="brokerd/__main__.py", text="from brokerd.server import Server"),
    ]
    assert unimported(files) == ["brokerd/dead.py"]
