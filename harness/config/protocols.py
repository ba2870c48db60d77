"""The interface of suites and optimizations, which the worker checks before it runs a cell.

A suite is a module of suites/, see `SuiteCode`. An optimization is a function of its name in
`optimizations.py` next to it, or the module `<optimization>.py` there or in a folder.
docs/extend/adding-a-suite.md shows all. mypy checks each module's types against these protocols
(tests/harness/config/test_protocols.py).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, Protocol, TypeVar

from harness.config.code_fingerprint import module_of, shown_path
from harness.config.validation import SEE, ConfigError
from harness.records import HostInfo, Json, Note, Reading

Subject = TypeVar("Subject")
Started = TypeVar("Started")
Built = TypeVar("Built", covariant=True)
Session = TypeVar("Session", contravariant=True)
Configured = TypeVar("Configured")

Techniques = Sequence[tuple[str, Json]]  # techniques of a training step, by name, each with its settings


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


class OptionalSuite(Protocol[Subject, Started]):
    """What a suite may have, too: each function where it is needed."""

    def preload(self) -> None:
        """Import what is slow to import, and compute nothing: the executor forks children after this."""

    def prepare(self, subject: Subject) -> Started:
        """Start what the subject needs; release it again on an exception."""

    def close(self, session: Started) -> None:
        """Release what `prepare` acquired, also after a failure."""

    def read_once(self, session: Started) -> Iterable[Reading | Note]:
        """Yield what needs no rounds, before the first: bytes, peak memory, time to compile."""

    def timed(self, session: Started) -> bool:
        """Return whether `sample` is to be called, where some variants are checked and not timed."""

    def apply_techniques(self, subject: Subject, techniques: Techniques) -> Subject:
        """Return the subject with techniques of `suites.training.techniques` applied."""


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


class FunctionOptimization:
    """A function of `optimizations.py`, whose parameters after the subject are its settings."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function


class Restricted(Protocol):
    """An optimization that cannot run everywhere."""

    def unavailable(self, host: HostInfo) -> str | None:
        """Return why it cannot run on `host`, for a person to read; None where it can."""


class Function(NamedTuple):
    """A function of a protocol: the names of its parameters, and whether a module must have it."""

    parameters: tuple[str, ...]
    required: bool = True


def _functions(protocol: type, required: bool = True) -> dict[str, Function]:
    return {
        name: Function(tuple(inspect.signature(one).parameters)[1:], required)
        for name, one in vars(protocol).items()
        if inspect.isfunction(one) and not name.startswith("_")
    }


SUITE = {**_functions(Suite), **_functions(OptionalSuite, required=False)}
OPTIMIZATION = {**_functions(ConfiguredOptimization), **_functions(Restricted, required=False)}
UNCONFIGURED = {**OPTIMIZATION, "apply": Function(("subject",))}

OptimizationModule = ModuleType | FunctionOptimization

FUNCTIONS = "optimizations.py"
"""The file of a suite's package with the optimizations that are functions; it imports without torch."""


class SuiteCode(NamedTuple):
    """Where the code of a suite is.

    Suites with much in common share a package: the modules of one that has the package's name are suite.py
    and optimizations.py, those of others bear their names. workload.py declares the workloads of all.
    """

    folder: Path  # of the package
    suite: str

    @property
    def package(self) -> str:
        """Return the dotted name of the package."""
        return f"{self.folder.parent.name}.{self.folder.name}"

    @property
    def module(self) -> str:
        """Return the dotted name of the suite's module."""
        return f"{self.package}.{'suite' if self.folder.name == self.suite else self.suite}"

    @property
    def workload(self) -> str:
        """Return the name of the class in workload.py that declares its workloads."""
        own = "" if self.folder.name == self.suite else self.suite.title().replace("_", "")
        return f"{own}Workload"

    @property
    def functions(self) -> Path:
        """Return the file with the optimizations that are functions: its own, or the package's."""
        own = self.folder / f"{self.suite}_{FUNCTIONS}"
        return own if own.is_file() else self.folder / FUNCTIONS


def check_suite(suite: ModuleType, techniques: bool = False) -> None:
    """Raise ConfigError, one line, where a suite lacks a function; with `techniques` it has to apply them."""
    expected = SUITE["apply_techniques"]._replace(required=techniques)
    refuse_incomplete(suite, {**SUITE, "apply_techniques": expected}, SEE)


def check_optimization(module: OptimizationModule) -> None:
    """Raise ConfigError, one line, where an optimization's module lacks a function."""
    if isinstance(module, FunctionOptimization):
        return
    refuse_incomplete(module, OPTIMIZATION if hasattr(module, "Settings") else UNCONFIGURED, SEE)


def refuse_incomplete(module: ModuleType, expected: Mapping[str, Function], see: str) -> None:
    """Raise ConfigError, one line that names the file and all functions that a module lacks."""
    if lacking := [text for name, one in expected.items() if (text := _fault(module, name, one))]:
        raise ConfigError(f"{module.__name__.replace('.', '/')}.py: {'; '.join(lacking)}. {see}")


def _fault(module: ModuleType, name: str, function: Function) -> str:
    expected = f"{name}({', '.join(function.parameters)})"
    if not hasattr(module, name):
        return f"{expected} is missing" if function.required else ""
    signature = inspect.signature(getattr(module, name))
    try:
        signature.bind(*function.parameters)
    except TypeError:
        plain = [one.replace(annotation=one.empty) for one in signature.parameters.values()]
        given = signature.replace(parameters=plain, return_annotation=signature.empty)
        return f"{name}{given} is there, expected {expected}"
    return ""


def optimization_file(code: SuiteCode, name: str) -> Path | None:
    """Return the file of an optimization, in a suite's package or in a folder there; None without one.

    Raises ConfigError where there are several.
    """
    found = [*code.folder.glob(f"*/{name}.py"), *code.folder.glob(f"{name}.py")]
    if function_of(code, name) is not None:
        found.append(code.functions)
    if len(found) > 1:
        places = " and ".join(str(one.relative_to(code.folder.parents[1])) for one in found)
        raise ConfigError(f"{places}: an optimization has one module; rename one of them")
    return found[0] if found else None


def function_of(code: SuiteCode, name: str) -> FunctionOptimization | None:
    """Return the function of a suite's `optimizations.py` with a name; None where there is none.

    Raises ConfigError where the file cannot be imported.
    """
    file = code.functions
    if not file.is_file():
        return None
    try:
        module = import_module(f"{code.package}.{file.stem}")
    except Exception as error:
        raise ConfigError(f"{shown_path(file)}: {' '.join(str(error).split())}. {SEE}") from None
    function = vars(module).get(name)
    if not inspect.isfunction(function):
        return None
    own = function.__module__ == module.__name__ or name in getattr(module, "__all__", ())
    return FunctionOptimization(function) if own else None


def optimization_module(code: SuiteCode, name: str) -> OptimizationModule | None:
    """Import an optimization of a suite; None where it has no module and no function."""
    file = optimization_file(code, name)
    if file is None:
        return None
    return function_of(code, name) or import_module(f"{code.package}.{module_of(file, code.folder)}")


def unavailable(module: OptimizationModule, host: HostInfo) -> str | None:
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


def apply(module: OptimizationModule, subject: Any, settings: Json) -> Any:
    """Return the subject with the optimization applied: with its settings, where it has any to set."""
    if isinstance(module, FunctionOptimization):
        return module.function(subject, **settings)
    if hasattr(module, "Settings"):
        return module.apply(subject, module.Settings(**settings))
    return module.apply(subject)
