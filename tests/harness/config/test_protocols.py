"""What a suite and an optimization must have: one refusal before any cell, and an error of mypy's."""

import re
import shutil
import subprocess
import sys

import pytest
from places import SUPPORT
from toy.sweep import cell, environ, group, sweep

from harness.config.code_fingerprint import ROOT, module_of
from harness.config.protocols import (
    OPTIMIZATION,
    SUITE,
    check_modules,
    optimization_file,
    optimizations_with_module,
)
from harness.config.run import load, names
from harness.config.validation import ConfigError
from harness.config.variants.optimizations import with_module
from harness.records import Status

TOY = SUPPORT / "toy" / "toy_suites"


@pytest.mark.parametrize("suite", names("suite"))
def test_every_suite_of_the_project_is_complete(suite):
    variants = load([f"suite={suite}"])[0].variants
    techniques = any(variant.techniques for variant in variants)
    check_modules(suite, {variant.module: variant.settings for variant in variants}, techniques)


@pytest.fixture
def toy(tmp_path):
    """Return a copy of a toy suite that may be spoilt, and its file."""
    shutil.copytree(TOY, tmp_path / "toy_suites")
    return tmp_path / "toy_suites" / "timed" / "__init__.py"


def without(file, function):
    """Remove a function from a module's source."""
    text = file.read_text()
    shorter = re.sub(rf"^def {function}\(.*?(?=^\S|\Z)", "", text, flags=re.S | re.M)
    assert shorter != text
    file.write_text(shorter)


@pytest.mark.parametrize("function", [name for name, one in SUITE.items() if one.required])
def test_a_suite_without_a_function_is_refused_in_one_line_that_names_it(toy, function):
    check_modules("timed", {"baseline": ["time_s", "act"]}, suites=toy.parents[1])
    without(toy, function)
    signature = f"{function}({', '.join(SUITE[function].parameters)})"
    with pytest.raises(ConfigError) as error:
        check_modules("timed", {}, suites=toy.parents[1])
    assert str(error.value) == (
        f"toy_suites/timed: {signature} is missing. docs/extend/adding-a-suite.md lists what a suite has"
    )


@pytest.mark.parametrize("function", ["read_once", "timed", "close"])
def test_what_a_suite_does_not_need_it_may_leave_out(toy, function):
    without(toy, function)
    check_modules("timed", {}, suites=toy.parents[1])


UNPREPARED = """
def build(workload, seed) -> {built}: ...
def check(session: {taken}) -> None: ...
def conditions(session: {taken}): ...
def sample(session: {sampled}): ...
"""


@pytest.mark.parametrize(
    ("taken", "sampled", "end", "said"),
    [
        ("Session", "Session", "", "build returns Subject, check takes Session."),
        ("Subject", "'Session'", "", "build returns Subject, sample takes Session."),
        ("Subject", "'Subject'", "", ""),
        ("Any", "object", "", ""),
        ("Session", "Session", "def prepare(subject: Subject) -> Session: ...", ""),
        ("Session", "Session", "from suites.kernels import prepare", ""),
    ],
)
def test_without_prepare_a_session_is_what_build_returns(toy, taken, sampled, end, said):
    toy.write_text(UNPREPARED.format(built="Subject", taken=taken, sampled=sampled) + end)
    if not said:
        check_modules("timed", {}, suites=toy.parents[1])
        return
    with pytest.raises(ConfigError) as error:
        check_modules("timed", {}, suites=toy.parents[1])
    assert str(error.value).startswith(f"toy_suites/timed: prepare(subject) is missing: {said}")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["__init__", "fast"])
def test_a_module_that_is_no_python_is_refused_in_one_line_with_its_place(toy, name):
    (toy.parent / f"{name}.py").write_text("x = 1\ndef apply(subject:\n")
    with pytest.raises(ConfigError, match=rf"/timed/{name}\.py:2: '\(' was never closed$"):
        check_modules("timed", {"fast": []}, suites=toy.parents[1])


def test_a_module_that_is_not_utf_8_is_refused_in_one_line(toy):
    (toy.parent / "fast.py").write_bytes("name = 'é'\n".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"/timed/fast\.py: not UTF-8 \(byte 8\)$"):
        check_modules("timed", {"fast": []}, suites=toy.parents[1])


def test_all_that_is_missing_is_named_at_once(toy):
    toy.write_text("def build(workload):\n    pass\n\ndef sample(session, *, fast):\n    pass\n")
    with pytest.raises(ConfigError) as error:
        check_modules("timed", {}, techniques=True, suites=toy.parents[1])
    assert str(error.value).startswith(
        "toy_suites/timed: build(workload) is there, expected build(workload, seed); "
        "check(session) is missing; conditions(session) is missing; "
        "sample(session, *, fast) is there, expected sample(session); "
        "apply_techniques(subject, techniques) is missing. "
    )


@pytest.mark.parametrize(
    ("source", "settings", "message"),
    [
        ("x = 1", [], r"apply\(subject\) is missing"),
        ("def apply(subject, settings): ...", [], r"expected apply\(subject\)"),
        ("class Settings: ...\ndef apply(subject): ...", [], r"expected apply\(subject, settings\)"),
        ("def apply(subject): ...\ndef unavailable(): ...", [], r"expected unavailable\(host\)"),
        ("def apply(subject): ...", ["ratio"], "a class Settings with ratio is missing"),
        (
            "class Settings:\n    depth: int\ndef apply(subject, settings): ...",
            ["depth", "ratio"],
            "a class Settings with ratio is missing",
        ),
        ("def apply(subject): ...", [], ""),
        ("from x import apply", [], ""),
        ("from .fast import apply", [], r"apply\(subject\) is missing"),
        ("from suites.kernels.torch_compile import aply as apply", [], r"apply\(subject\) is missing"),
        ("from suites.kernels.torch_compile import Settings, apply", ["mode"], ""),
        ("from suites.kernels.torch_compile import Settings, apply", ["mood"], "Settings with mood"),
    ],
)
def test_an_optimization_is_checked_against_its_protocol(toy, source, settings, message):
    (toy.parent / "fast.py").write_text(source)
    if not message:
        check_modules("timed", {"fast": settings}, suites=toy.parents[1])
        return
    with pytest.raises(ConfigError, match=rf"^toy_suites/timed/fast\.py: .*{message}.*"):
        check_modules("timed", {"fast": settings}, suites=toy.parents[1])
    assert set(OPTIMIZATION) == {"apply", "unavailable"}


def test_an_optimization_may_be_in_a_folder_of_its_suite(toy):
    folder = toy.parent / "folder"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "helper.py").write_text("def applied(subject): ...\n")
    (folder / "late.py").write_text("def apply(subject, *, wrong): ...\n")
    with pytest.raises(ConfigError, match=r"^toy_suites/timed/folder/late\.py: apply\(subject"):
        check_modules("timed", {"late": []}, suites=toy.parents[1])
    assert optimizations_with_module(toy.parent) == ["baseline", "late"]
    assert optimization_file(toy.parent, "helper") is None
    (toy.parent / "late.py").write_text("def apply(subject): ...\n")
    with pytest.raises(ConfigError, match=r"^toy_suites/timed/folder/late\.py and toy_suites/timed/late\.py"):
        check_modules("timed", {"late": []}, suites=toy.parents[1])


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


def test_a_child_refuses_it_too_where_nobody_looked_before(toy, tmp_path, monkeypatch):
    without(toy, "conditions")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{tmp_path}")
    one = cell(suite="timed", time_s=1.0)
    record = sweep(tmp_path / "out", [group(one)])[one.id]
    assert record.status == Status.CRASHED
    assert "toy_suites/timed: conditions(session) is missing" in record.reason


def test_the_command_refuses_an_incomplete_suite_before_any_cell(tmp_path):
    """In a copy of the project: exit status 2, one line, nothing written."""
    for folder in ("harness", "conf", "suites"):
        shutil.copytree(
            ROOT / folder, tmp_path / folder, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
        )
    without(tmp_path / "suites" / "congestion" / "__init__.py", "conditions")
    words = ["suite=congestion", "workloads=[incast_16]", "repeats=1", "out=results"]
    done = subprocess.run(
        [sys.executable, "-m", "harness", *words],
        cwd=tmp_path,
        env={**environ(), "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr == (
        "harness: suites/congestion: conditions(session) is missing. "
        "docs/extend/adding-a-suite.md lists what a suite has\n"
    )
    assert done.stdout == ""
    assert not (tmp_path / "results").exists()


TYPED = """from harness.config.protocols import (
    AppliesTechniques, Closes, ConfiguredOptimization, Optimization, Prepares, ReadsOnce, Restricted, Suite,
    TimesSome,
)
from typing import TypeVar
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
def restricted(one: Restricted) -> None: ...

"""
OPTIONAL = {
    "close": "closes",
    "read_once": "reads_once",
    "timed": "times_some",
    "apply_techniques": "applies_techniques",
}


def typed_uses(package, folder, optimizations):
    """Return Python that mypy accepts if a suite and its optimizations fit the protocols."""
    text = (folder / "__init__.py").read_text()

    def has(name, source=text):
        return re.search(rf"^def {name}\(|^from .* import .*\b{name}\b", source, re.M)

    lines = [f"import {package}"]
    lines += [f"prepared({package}, {package})" if has("prepare") else f"plain({package})"]
    lines += [f"{call}({package}, {package})" for name, call in OPTIONAL.items() if has(name)]
    for one in optimizations:
        file = optimization_file(folder, one)
        module, source = f"{package}.{module_of(file, folder)}", file.read_text()
        kind = (
            "configured"
            if re.search(r"^class Settings|import .*\bSettings\b", source, re.M)
            else "optimization"
        )
        lines += [f"import {module}", f"{kind}({package}, {module})"]
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


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_mypy_holds_every_suite_and_optimization_to_the_protocols(tmp_path):
    lines = [
        line
        for suite in names("suite")
        for line in typed_uses(f"suites.{suite}", ROOT / "suites" / suite, with_module(suite))
    ]
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
    package = tmp_path / "small_suite"
    package.mkdir()
    (package / "__init__.py").write_text(SMALL.replace(before, after) if before else SMALL)
    done = mypy(tmp_path, TYPED + "\n".join(typed_uses("small_suite", package, [])), MYPYPATH=str(tmp_path))
    assert (done.returncode == 0) == (not message), done.stdout
    assert message in done.stdout
