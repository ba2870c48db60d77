"""What a suite and an optimization must have: refused by the worker in one line, and an error of mypy's."""

import re
import shutil
import subprocess
import sys
from importlib import import_module
from types import ModuleType

import pytest
from places import SUPPORT
from toy.sweep import cell, environ, group, sweep

from harness.config.code_fingerprint import ROOT, module_of
from harness.config.optimizations import code_of, optimizations, read_yaml, settings_of
from harness.config.protocols import (
    OPTIMIZATION,
    SEE,
    SUITE,
    SuiteCode,
    check_optimization,
    check_suite,
    optimization_file,
    optimization_module,
)
from harness.config.run import load, names
from harness.config.validation import ConfigError
from harness.records import Status

TOY = SUPPORT / "toy" / "toy_suites"


@pytest.mark.parametrize("suite", names("suite"))
def test_every_suite_of_the_project_is_complete(suite):
    module = import_module(code_of(suite).module)
    own = read_yaml(ROOT / "conf" / "suite" / f"{suite}.yaml")
    check_suite(module, techniques=own.get("takes_techniques", False))
    assert hasattr(module, "apply_techniques") == own.get("takes_techniques", False)
    assert hasattr(module, "bf16_FLOP") == own.get("bf16_products", False)
    for variant in load([f"suite={suite}"])[0].variants:
        if (optimization := optimization_module(code_of(suite), variant.module)) is not None:
            check_optimization(optimization)


@pytest.mark.parametrize("suite", names("suite"))
def test_a_suites_package_imports_nothing(suite):
    """So that its workload.py can be imported without torch."""
    assert not (code_of(suite).folder / "__init__.py").read_text()


def test_suites_share_a_package_by_modules_of_their_names(toy, tmp_path, monkeypatch):
    """One with functions of its own, and one with those of the package."""
    folder = toy.parents[1].rename(tmp_path / "shared_suites") / "timed"
    functions = folder / "optimizations.py"
    functions.write_text("def late(subject): return subject\n")
    own = folder / "late_one_optimizations.py"
    own.write_text("def late(subject, time_s: float = 3): raise ValueError(f'late by {time_s}')\n")
    one, two = (SuiteCode(folder, name) for name in ("late_one", "late_two"))
    assert (one.module, one.workload) == ("shared_suites.timed.late_one", "LateOneWorkload")
    monkeypatch.syspath_prepend(tmp_path)
    assert (optimization_file(one, "late"), optimization_file(two, "late")) == (own, functions)
    assert list(settings_of(one, "late")) == ["time_s"]
    assert not settings_of(two, "late")


def test_what_the_parent_imports_of_suites_needs_no_torch():
    code = (
        "import sys; from harness.config.run import load\n"
        f"for suite in {names('suite')}: load([f'suite={{suite}}'])\n"
        "print({'torch', 'triton', 'deepspeed', 'scipy', 'pandas', 'ray'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "set()\n", done.stderr


@pytest.fixture
def toy(tmp_path):
    """Return a copy of a toy suite that may be spoilt, and its file."""
    shutil.copytree(TOY, tmp_path / "toy_suites")
    return tmp_path / "toy_suites" / "timed" / "suite.py"


def without(file, function):
    """Remove a function from a module's source."""
    text = file.read_text()
    shorter = re.sub(rf"^def {function}\(.*?(?=^\S|\Z)", "", text, flags=re.S | re.M)
    assert shorter != text
    file.write_text(shorter)


def module(name, text):
    """Return a module of this text."""
    made = ModuleType(name)
    exec(text, vars(made))
    return made


COMPLETE = "".join(f"def {name}({', '.join(one.parameters)}): ...\n" for name, one in SUITE.items())


@pytest.mark.parametrize("function", SUITE)
def test_a_suite_without_a_required_function_is_refused_in_one_line_that_names_it(function):
    suite = module("suites.toy.suite", COMPLETE)
    check_suite(suite, techniques=True)
    delattr(suite, function)
    if not SUITE[function].required:
        check_suite(suite)
        return
    signature = f"{function}({', '.join(SUITE[function].parameters)})"
    with pytest.raises(ConfigError) as error:
        check_suite(suite)
    assert str(error.value) == f"suites/toy/suite.py: {signature} is missing. {SEE}"


def test_all_that_is_missing_is_named_at_once():
    with pytest.raises(ConfigError) as error:
        check_suite(
            module("toy", "def build(workload: dict): ...\ndef sample(session, *, fast): ..."),
            techniques=True,
        )
    assert str(error.value).startswith(
        "toy.py: build(workload) is there, expected build(workload, seed); "
        "check(session) is missing; conditions(session) is missing; "
        "sample(session, *, fast) is there, expected sample(session); "
        "apply_techniques(subject, techniques) is missing. "
    )


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x = 1", r"apply\(subject\) is missing"),
        ("def apply(subject, settings): ...", r"expected apply\(subject\)"),
        ("class Settings: ...\ndef apply(subject): ...", r"expected apply\(subject, settings\)"),
        ("def apply(subject): ...\ndef unavailable(): ...", r"expected unavailable\(host\)"),
        ("def apply(subject): ...", ""),
        ("class Settings: ...\ndef apply(subject, settings, further=1): ...", ""),
    ],
)
def test_an_optimization_is_checked_against_its_protocol(source, message):
    optimization = module("suites.toy.fast", source)
    if not message:
        check_optimization(optimization)
        return
    with pytest.raises(ConfigError, match=rf"^suites/toy/fast\.py: .*{message}.*"):
        check_optimization(optimization)
    assert set(OPTIMIZATION) == {"apply", "unavailable"}


def test_an_optimization_may_be_in_a_folder_of_its_suite(toy):
    folder, code = toy.parent / "folder", SuiteCode(toy.parent, "timed")
    folder.mkdir()
    (folder / "late.py").touch()
    assert optimization_file(code, "late") == folder / "late.py"
    assert optimization_file(code, "nowhere") is None
    (toy.parent / "late.py").touch()
    with pytest.raises(ConfigError, match=r"^toy_suites/timed/folder/late\.py and toy_suites/timed/late\.py"):
        optimization_file(code, "late")


def test_an_optimization_may_be_a_function(toy, tmp_path, monkeypatch):
    (toy.parent / "optimizations.py").write_text(
        "def late(subject, time_s: float = 3): raise ValueError(f'late by {time_s}')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert optimization_file(SuiteCode(toy.parent, "timed"), "late") == toy.parent / "optimizations.py"
    assert settings_of(SuiteCode(toy.parent, "timed"), "late") == {
        "time_s": {"type": "float", "default": 3.0}
    }
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{tmp_path}")
    one = cell(suite="timed", module="late", time_s=1.0)
    record = sweep(tmp_path / "out", [group(one)])[one.id]
    assert record.reason.startswith("ValueError: late by 1.0")


def test_what_optimizations_import_is_none(toy, tmp_path, monkeypatch):
    source = "from dataclasses import replace\ndef late(subject): ...\n"
    (toy.parent / "optimizations.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    assert optimization_file(SuiteCode(toy.parent, "timed"), "replace") is None
    assert optimization_file(SuiteCode(toy.parent, "timed"), "late")


def test_a_child_imports_an_optimization_from_its_folder(toy, tmp_path, monkeypatch):
    folder = toy.parent / "folder"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "late.py").write_text("def apply(subject):\n    raise ValueError('from the folder')\n")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{tmp_path}")
    one = cell(suite="timed", module="late", time_s=1.0)
    record = sweep(tmp_path / "out", [group(one)])[one.id]
    assert record.status == Status.CRASHED
    assert record.reason.startswith("ValueError: from the folder")


@pytest.mark.parametrize("file", ["suite.py", "late.py"])
def test_a_child_refuses_an_incomplete_module(toy, tmp_path, monkeypatch, file):
    if file == "suite.py":
        without(toy, "conditions")
    (toy.parent / "late.py").write_text("def apply(subject, further): ...\n")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{tmp_path}")
    one = cell(suite="timed", module="late", time_s=1.0)
    record = sweep(tmp_path / "out", [group(one)])[one.id]
    assert record.status == Status.CRASHED
    lacking = {"suite.py": "conditions(session) is missing", "late.py": "apply(subject, further) is there"}
    assert f"toy_suites/timed/{file}: {lacking[file]}" in record.reason


TYPED = """from harness.config.protocols import (
    AppliesTechniques, Closes, ConfiguredOptimization, Optimization, Prepares, ReadsOnce, Restricted, Suite,
    TimesSome,
)
from collections.abc import Callable
from typing import Concatenate, TypeVar
S = TypeVar("S")
T = TypeVar("T")
C = TypeVar("C")

def prepared(suite: Suite[S, T], prepares: Prepares[S, T]) -> None: ...
def plain(suite: Suite[S, S]) -> None: ...
def closes(suite: Suite[S, T], closes: Closes[T]) -> None: ...
def reads_once(suite: Suite[S, T], reads: ReadsOnce[T]) -> None: ...
def times_some(suite: Suite[S, T], times: TimesSome[T]) -> None: ...
def applies_techniques(suite: Suite[S, T], applies: AppliesTechniques[S]) -> None: ...
def optimization(suite: Suite[S, T], one: Optimization[S]) -> None: ...
def configured(suite: Suite[S, T], one: ConfiguredOptimization[S, C]) -> None: ...
def function(suite: Suite[S, T], one: Callable[Concatenate[S, ...], S]) -> None: ...
def restricted(one: Restricted) -> None: ...

"""
OPTIONAL = {
    "close": "closes",
    "read_once": "reads_once",
    "timed": "times_some",
    "apply_techniques": "applies_techniques",
}


def typed_uses(code, optimizations):
    """Return Python that mypy accepts if a suite and its optimizations fit the protocols."""
    suite, package = code.module, code.package
    text = (code.folder / f"{suite.rpartition('.')[2]}.py").read_text()

    def has(name, source=text):
        return re.search(rf"^def {name}\(|^from .* import .*\b{name}\b", source, re.M)

    lines = [f"import {suite}"]
    lines += [f"prepared({suite}, {suite})" if has("prepare") else f"plain({suite})"]
    lines += [f"{call}({suite}, {suite})" for name, call in OPTIONAL.items() if has(name)]
    for one in optimizations:
        file = optimization_file(code, one)
        module, source = f"{package}.{module_of(file, code.folder)}", file.read_text()
        if file == code.functions:
            lines += [f"import {module}", f"function({suite}, {module}.{one})"]
            continue
        kind = (
            "configured"
            if re.search(r"^class Settings|import .*\bSettings\b", source, re.M)
            else "optimization"
        )
        lines += [f"import {module}", f"{kind}({suite}, {module})"]
        lines += [f"restricted({module})"] if has("unavailable", source) else []
    return lines


def mypy(folder, text, **environment):
    (folder / "typed_uses.py").write_text(text)
    return subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", ROOT / "pyproject.toml", folder / "typed_uses.py"],
        cwd=ROOT,
        env={**environ(), **environment},
        capture_output=True,
        text=True,
    )


def modules_of(suite):
    """Return the optimizations of a suite that have a module."""
    return [name for name in optimizations(suite) if optimization_file(code_of(suite), name)]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_mypy_holds_every_suite_and_optimization_to_the_protocols(tmp_path):
    lines = [line for suite in names("suite") for line in typed_uses(code_of(suite), modules_of(suite))]
    assert len(lines) > 3 * len(names("suite"))
    done = mypy(tmp_path, TYPED + "\n".join(lines))
    assert done.returncode == 0, done.stdout


SMALL = """
from collections.abc import Iterator, Mapping
from harness.records import Json, Reading

def build(workload: Json, seed: int) -> int:
    return seed

def prepare(subject: int) -> list[int]:
    return [subject]

def check(session: list[int]) -> None: ...

def conditions(session: list[int]) -> Mapping[str, str]:
    return {}

def sample(session: list[int]) -> Iterator[Reading]:
    yield Reading("time", "s", 1.0, "measured")
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("", "", ""),
        ("def conditions(", "def circumstances(", "conditions"),
        ("def check(session: list[int])", "def check(session: str)", 'type parameter "T"'),
        ("Mapping[str, str]:", "Mapping[str, int]:", "conditions"),
    ],
    ids=["complete", "a function removed", "another session", "another result"],
)
def test_mypy_refuses_a_suite_that_does_not_fit(tmp_path, before, after, message):
    package = tmp_path / "small" / "small_suite"
    package.mkdir(parents=True)
    (package / "suite.py").write_text(SMALL.replace(before, after) if before else SMALL)
    uses = typed_uses(SuiteCode(package, "small_suite"), [])
    done = mypy(tmp_path, TYPED + "\n".join(uses), MYPYPATH=str(tmp_path))
    assert (done.returncode == 0) == (not message), done.stdout
    assert message in done.stdout
