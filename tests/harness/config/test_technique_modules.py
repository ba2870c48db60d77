"""A technique's module is checked before any cell: one line names all that it lacks."""

import ast
import re
import shutil

import pytest

from harness.config.code_fingerprint import ROOT
from harness.config.validation import ConfigError
from harness.config.variants.techniques import (
    TECHNIQUE,
    built,
    check_functions,
    check_module,
    checked_techniques,
    file_of,
    names,
)

GUIDE = (ROOT / "docs/extend/adding-a-technique.md").read_text()
COMBINES = (
    "What it does not combine with follows from `ROLE` and `EXCLUDES` of either module, and from what "
    "`applies_to` and `apply` refuse."
)
SEE = ". docs/extend/adding-a-technique.md lists what a technique has"


@pytest.mark.parametrize("name", names())
def test_every_technique_of_the_project_is_complete(name):
    check_module(file_of(name))
    check_functions(name)


@pytest.mark.parametrize("name", names())
def test_what_a_technique_does_not_combine_with_is_not_listed_in_its_docstring(name):
    """A list in words went out of date; `NOT_BUILT` techniques combine with nothing."""
    text = " ".join((ast.get_docstring(ast.parse(file_of(name).read_text())) or "").split())
    if name not in built():
        assert "so it combines with nothing" in text
    else:
        assert COMBINES in text
        assert "combines with" not in text


@pytest.fixture
def copy(tmp_path):
    """A copy of one technique that may be spoilt."""
    folder = tmp_path / "suites/training/techniques/parallelism"
    folder.mkdir(parents=True)
    return shutil.copy(file_of("fsdp2"), folder / "fsdp2.py")


def changed(file, pattern, replacement=""):
    text = file.read_text()
    other = re.sub(pattern, replacement, text, flags=re.S | re.M)
    assert other != text
    file.write_text(other)


SIGNATURES = {name: f"{name}({', '.join(one.parameters)})" for name, one in TECHNIQUE.items()}
FAULTS = {
    "no LEVEL": (r"^LEVEL = .*?\n", "", "LEVEL is missing"),
    "no Settings": (r"^@dataclass.*?^class Settings:.*?(?=^\S)", "", "class Settings is missing"),
    "a field without default": (
        r"(forward_prefetch: bool) = False",
        r"\1",
        "Settings.forward_prefetch has no default",
    ),
    "a misspelt exclusion": (
        r"^ROLE = ",
        'EXCLUDES = {"fsdp3": "a reason"}\nROLE = ',
        "EXCLUDES.fsdp3: no such name; did you mean fsdp2? allowed: fsdp2",
    ),
    "a misspelt need": (
        r"^ROLE = ",
        'NEEDS = ("fsdp",)\nROLE = ',
        "NEEDS.fsdp: no such name; did you mean fsdp2? allowed: fsdp2",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_an_incomplete_technique_is_refused_in_one_line_that_names_what_is_missing(copy, fault):
    pattern, replacement, message = FAULTS[fault]
    changed(copy, pattern, replacement)
    with pytest.raises(ConfigError) as error:
        checked_techniques("here", ["fsdp2"], copy.parents[1])
    assert message in str(error.value)
    assert "techniques/parallelism/fsdp2.py: " in str(error.value)


def test_constants_may_be_annotated(copy):
    changed(copy, r"^LEVEL = ", "LEVEL: Level = ")
    changed(copy, r"^ROLE = ", 'EXCLUDES: dict[str, str] = {"fsdp3": "a reason"}\nROLE: Role = ')
    with pytest.raises(ConfigError, match=r": EXCLUDES\.fsdp3: no such name; did you mean fsdp2\?"):
        check_module(copy, copy.parents[1])


def test_exclusions_that_have_to_be_computed_are_refused(copy):
    changed(copy, r"^ROLE = ", 'EXCLUDES = dict(fsdp2="no")\nROLE = ')
    with pytest.raises(ConfigError, match=r"fsdp2\.py: EXCLUDES=dict\(fsdp2='no'\) is no literal$"):
        check_module(copy, copy.parents[1])


def test_a_bound_that_there_is_not_is_refused(copy):
    changed(copy, r"at_least=1", "atleast=1")
    with pytest.raises(ConfigError, match=r"unexpected keyword argument 'atleast'"):
        check_module(copy, copy.parents[1])


def test_two_techniques_of_one_name_are_refused(copy):
    other = copy.parents[1] / "precision" / copy.name
    other.parent.mkdir()
    shutil.copy(copy, other)
    with pytest.raises(
        ConfigError, match=r"parallelism/fsdp2\.py.*precision/fsdp2\.py: two techniques of one"
    ):
        checked_techniques("here", ["fsdp2"], copy.parents[1])


def test_all_that_is_undeclared_is_named_at_once(copy):
    copy.write_text('EXCLUDES = {"fsdp3": "a reason"}\n')
    with pytest.raises(ConfigError, match=r"LEVEL is missing; EXCLUDES\.fsdp3: no such name"):
        check_module(copy, copy.parents[1])


def test_a_missing_function_is_refused_in_one_line_that_names_the_file(monkeypatch):
    monkeypatch.delattr("suites.training.techniques.parallelism.fsdp2.contract")
    with pytest.raises(ConfigError) as error:
        check_functions("fsdp2")
    message = "suites/training/techniques/parallelism/fsdp2.py: contract(settings) is missing"
    assert str(error.value) == message + SEE


def test_the_guide_names_everything_that_a_technique_has():
    for part in ("LEVEL", "Settings", "ROLE", "EXCLUDES", "NEEDS", "NOT_BUILT", *SIGNATURES.values()):
        assert f"`{part}`" in GUIDE
