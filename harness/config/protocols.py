"""The interface of suites and optimizations, checked by reading their modules before any cell runs.

A suite is the package `suites/<suite>/`, an optimization the module `<optimization>.py` in it or in one of
its folders. docs/extend/adding-a-suite.md shows both. mypy checks each module's types against these protocols
(tests/harness/config/test_protocols.py).
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, Protocol, TypeVar

from harness.config.code_fingerprint import ROOT, file_of, module_of, parsed, source_of
from harness.config.validation import ConfigError
from harness.records import HostInfo, Json, Note, Reading

Subject = TypeVar("Subject")
Built = TypeVar("Built", covariant=True)
Given = TypeVar("Given", contravariant=True)
Session = TypeVar("Session", contravariant=True)
Started = TypeVar("Started", covariant=True)
Configured = TypeVar("Configured")

Techniques = Sequence[tuple[str, Json]]
"""Techniques of a training step, by name, each with its settings."""


class Suite(Protocol[Built, Session]):
    """Builds the baseline, and measures a subject whatever was done to it.

    A subject is a plain description. A session is what `prepare` makes of it: processes, networks, tensors.
    Without `prepare` the session is the subject.
    """

    def build(self, workload: Json, seed: int) -> Built:
        """Return the baseline for `workload`; nothing is started."""

    def check(self, session: Session) -> None:
        """Compare the result with the baseline's or a reference's; raises `WrongResult`."""

    def conditions(self, session: Session) -> Mapping[str, str]:
        """Return under which conditions its readings were taken, for the judge to compare with a claim's."""

    def sample(self, session: Session) -> Iterable[Reading | Note]:
        """Do the work once; yield one reading of each metric as soon as it is taken.

        In a suite with `interleave: true` it is called once per round.
        """


class Preloads(Protocol):
    """A suite with slow imports that its cells need."""

    def preload(self) -> None:
        """Import it, and compute nothing: the executor forks children after this."""


class Prepares(Protocol[Given, Started]):
    """A suite that has something to start."""

    def prepare(self, subject: Given) -> Started:
        """Start what the subject needs; release it again on an exception."""


class Closes(Protocol[Session]):
    """A suite that has something to release."""

    def close(self, session: Session) -> None:
        """Release what `prepare` acquired, also after a failure."""


class ReadsOnce(Protocol[Session]):
    """An interleaved suite with readings that need no rounds: bytes, peak memory, time to compile."""

    def read_once(self, session: Session) -> Iterable[Reading | Note]:
        """Yield what is read once per cell, before the first round."""


class TimesSome(Protocol[Session]):
    """An interleaved suite in which some variants are checked and not timed."""

    def timed(self, session: Session) -> bool:
        """Return whether `sample` is to be called."""


class AppliesTechniques(Protocol[Subject]):
    """A suite whose optimizations may list techniques of `suites.training.techniques`."""

    def apply_techniques(self, subject: Subject, techniques: Techniques) -> Subject:
        """Return the subject with the techniques applied."""


class Optimization(Protocol[Subject]):
    """One way to do the work. In a module with a class `Settings`, `apply` also takes an instance of it."""

    def apply(self, subject: Subject) -> Subject:
        """Return the subject with the optimization applied."""


class ConfiguredOptimization(Protocol[Subject, Configured]):
    """An optimization with settings: those of its YAML fill the dataclass `Settings`."""

    @property
    def Settings(self) -> Callable[..., Configured]:
        """Return the dataclass."""

    def apply(self, subject: Subject, settings: Configured) -> Subject:
        """Return the subject with the optimization applied as `settings` say."""


class Restricted(Protocol):
    """An optimization that cannot run everywhere."""

    def unavailable(self, host: HostInfo) -> str | None:
        """Return why it cannot run on `host`, for a person to read; None where it can."""


class Function(NamedTuple):
    """A function of a protocol: the names of its parameters, and whether a module must have it."""

    parameters: tuple[str, ...]
    required: bool = True


SUITE = {
    "preload": Function((), required=False),
    "build": Function(("workload", "seed")),
    "prepare": Function(("subject",), required=False),
    "check": Function(("session",)),
    "conditions": Function(("session",)),
    "read_once": Function(("session",), required=False),
    "timed": Function(("session",), required=False),
    "sample": Function(("session",)),
    "close": Function(("session",), required=False),
    "apply_techniques": Function(("subject", "techniques"), required=False),
}
OPTIMIZATION = {
    "apply": Function(("subject", "settings")),
    "unavailable": Function(("host",), required=False),
}
UNCONFIGURED = {**OPTIMIZATION, "apply": Function(("subject",))}

SEE = "docs/extend/adding-a-suite.md lists what a suite has"


def check_modules(
    suite: str,
    settings: Mapping[str, Iterable[str]],
    techniques: bool = False,
    suites: Path = ROOT / "suites",
) -> None:
    """Raise ConfigError, one line, where a suite or a module of its optimizations lacks something.

    `settings` names each optimization's; one need not have a module. With `techniques` the suite has to apply
    them.
    """
    check_suite(suites / suite, techniques)
    for name, own in settings.items():
        file = optimization_file(suites / suite, name)
        if file is not None:
            _check_optimization(file, sorted(own), suites / suite)


def optimizations_with_module(package: Path) -> list[str]:
    """Return the optimizations that have a module: one that defines or imports `apply`."""
    files = [*package.glob("*.py"), *package.glob("*/*.py")]
    return sorted({one.stem for one in files if "apply" in source_of(one) and statement(one, "apply")})


def optimization_file(package: Path, name: str) -> Path | None:
    """Return the module of an optimization, in a suite's package or in one of its folders; None without one.

    In a folder it is one that defines or imports `apply`. Raises ConfigError where there are several.
    """
    found = [one for one in sorted(package.glob(f"*/{name}.py")) if statement(one, "apply")]
    found += [one for one in (package / f"{name}.py",) if one.is_file()]
    if len(found) > 1:
        places = " and ".join(_shown(one, package) for one in found)
        raise ConfigError(f"{places}: an optimization has one module; rename one of them")
    return found[0] if found else None


def optimization_module(package: str, name: str) -> ModuleType | None:
    """Import the module of an optimization of a suite's package; None where it has none."""
    folder = Path(import_module(package).__path__[0])
    file = optimization_file(folder, name)
    return None if file is None else import_module(f"{package}.{module_of(file, folder)}")


def _check_optimization(file: Path, settings: Sequence[str], package: Path) -> None:
    declared = statement(file, "Settings")
    _refuse(file, UNCONFIGURED if declared is None else OPTIMIZATION, package)
    body = declared.body if isinstance(declared, ast.ClassDef) else []
    fields = {ast.unparse(one.target) for one in body if isinstance(one, ast.AnnAssign)}
    missing = [name for name in settings if name not in fields]
    if missing and (declared is None or isinstance(declared, ast.ClassDef)):
        lacking = f"a class Settings with {', '.join(missing)} is missing"
        raise ConfigError(f"{_shown(file, package)}: {lacking}. {SEE}")


def check_suite(package: Path, techniques: bool = False) -> None:
    """Raise ConfigError, one line, where a suite's package lacks something."""
    expected = SUITE["apply_techniques"]._replace(required=techniques)
    _refuse(package / "__init__.py", {**SUITE, "apply_techniques": expected}, package)
    _refuse_unprepared(package)


def _refuse(file: Path, expected: Mapping[str, Function], package: Path) -> None:
    if lacking := faults(file, expected):
        raise ConfigError(f"{_shown(file, package)}: {'; '.join(lacking)}. {SEE}")


def _refuse_unprepared(package: Path) -> None:
    """Refuse a suite without `prepare` in which a function takes another type than `build` returns."""
    file = package / "__init__.py"
    build = statement(file, "build")
    if statement(file, "prepare") is not None or not isinstance(build, ast.FunctionDef):
        return
    built = _annotation(build.returns)
    for name in (name for name, function in SUITE.items() if function.parameters == ("session",)):
        defined = statement(file, name)
        given = (
            [*defined.args.posonlyargs, *defined.args.args] if isinstance(defined, ast.FunctionDef) else []
        )
        taken = _annotation(given[0].annotation) if given else ""
        if built and taken and built != taken:
            fault = f"prepare(subject) is missing: build returns {built}, {name} takes {taken}"
            raise ConfigError(f"{_shown(file, package)}: {fault}. {SEE}")


def _annotation(node: ast.expr | None) -> str:
    """Return an annotation as text; "" where there is none, or one that allows any type."""
    text = "" if node is None else ast.unparse(node).strip("'\"")
    return "" if text in ("Any", "typing.Any", "object") else text


def faults(file: Path, expected: Mapping[str, Function]) -> list[str]:
    """Return what a module lacks of the functions that it should have; nothing where it is complete."""
    return [fault for name, function in expected.items() if (fault := _fault(file, name, function))]


def _shown(file: Path, package: Path) -> str:
    """Return `suites/<suite>` for a suite's package, `suites/<suite>/<name>.py` for a module of it."""
    shown = package if file == package / "__init__.py" else file
    return str(shown.relative_to(package.parents[1]))


def _fault(file: Path, name: str, function: Function) -> str:
    signature = f"{name}({', '.join(function.parameters)})"
    defined = statement(file, name)
    if defined is None:
        return f"{signature} is missing" if function.required else ""
    if isinstance(defined, ast.FunctionDef) and not _takes(defined.args, len(function.parameters)):
        return f"{name}({ast.unparse(defined.args)}) is there, expected {signature}"
    return ""


def _takes(given: ast.arguments, count: int) -> bool:
    """Return whether a function can be called with so many positional arguments."""
    positional = len(given.posonlyargs) + len(given.args)
    most = count if given.vararg else positional
    return positional - len(given.defaults) <= count <= most and None not in given.kw_defaults


def statement(file: Path, name: str) -> ast.stmt | None:
    """Return the statement that gives a module its `name`, in the module that an import takes it from."""
    found = definition(file, name)
    return found and found[1]


def definition(
    file: Path, name: str, before: ast.stmt | None = None, sought: tuple[tuple[Path, str], ...] = ()
) -> tuple[Path, ast.stmt] | None:
    """Return the last statement that gives a module its `name`, and the file that it is in; see `statement`.

    `before`: look only at what stands before this statement. Of an imported name it is the statement in the
    module of this project that defines it, or the import where that is another project's or a module. None
    where nothing defines the name; `sought` are the names that led here by imports.
    """
    statements = _statements(file)
    if before in statements:
        statements = statements[: statements.index(before)]
    for node in reversed(statements):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return file, node
        if isinstance(node, ast.Assign) and name in [ast.unparse(one) for one in node.targets]:
            return file, node
        if isinstance(node, ast.AnnAssign) and node.value is not None and ast.unparse(node.target) == name:
            return file, node
        if isinstance(node, ast.ImportFrom):
            original = next((one.name for one in node.names if (one.asname or one.name) == name), None)
            if original is None:
                continue
            source = imported_from(file, node)
            if source is None or imported_from(file, node, original) is not None:
                return file, node
            if (file, name) in sought:
                return None
            return definition(source, original, sought=(*sought, (file, name)))
    return None


def imported_from(file: Path, node: ast.ImportFrom, name: str = "") -> Path | None:
    """Return the file of this project that `node` imports from, or of its module `name`; None elsewhere."""
    parts = [*(node.module or "").split("."), *name.split(".")]
    module = ".".join(part for part in parts if part)
    return file_of(module, file.parents[node.level - 1]) if node.level else file_of(module)


def _statements(file: Path) -> tuple[ast.stmt, ...]:
    return _parsed(file, source_of(file)) if file.is_file() else ()


@cache
def _parsed(file: Path, source: str) -> tuple[ast.stmt, ...]:
    """Return a file's statements, those in `try` and `if` too; once for each `source` that it has had."""
    return tuple(_flat(parsed(file).body))


def _flat(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        yield from _flat(node.body) if isinstance(node, ast.Try | ast.If) else (node,)


def unavailable(module: ModuleType, host: HostInfo) -> str | None:
    """Return why an optimization cannot run on `host`; None where it can, or does not say."""
    reason: str | None = module.unavailable(host) if hasattr(module, "unavailable") else None
    return reason


def prepared(suite: Any, subject: Any) -> Any:
    """Return the session of a subject: the subject itself where the suite has nothing to start."""
    return suite.prepare(subject) if hasattr(suite, "prepare") else subject


def close(suite: Any, session: Any) -> None:
    """Close a session, where the suite has something to release."""
    if hasattr(suite, "close"):
        suite.close(session)


def apply(module: ModuleType, subject: Any, settings: Json) -> Any:
    """Return the subject with the optimization applied: with its settings, where it has any to set."""
    if hasattr(module, "Settings"):
        return module.apply(subject, module.Settings(**settings))
    return module.apply(subject)
