"""A technique's declaration and its module's functions are checked before any cell runs."""

import pytest

from harness.config.code_fingerprint import ROOT
from harness.config.techniques import TECHNIQUE, check_functions, names, settings_of
from harness.config.validation import ConfigError, DeclaredTechnique
from suites.training.declared import Level, technique

GUIDE = (ROOT / "docs/extend/adding-a-technique.md").read_text()
SIGNATURES = [f"{name}({', '.join(one.parameters)})" for name, one in TECHNIQUE.items()]


@pytest.mark.parametrize("name", names())
def test_every_technique_of_the_project_is_complete(name):
    check_functions(name)
    assert all("default" in field for field in settings_of(name).values())


def test_a_missing_function_is_refused_in_one_line_that_names_the_file(monkeypatch):
    monkeypatch.delattr("suites.training.techniques.fsdp2.contract")
    with pytest.raises(ConfigError) as error:
        check_functions("fsdp2")
    message = "suites/training/techniques/fsdp2.py: contract(settings) is missing"
    assert str(error.value) == f"{message}. docs/extend/adding-a-technique.md lists what a technique has"


def test_two_techniques_of_one_name_are_refused():
    with pytest.raises(ValueError, match="two techniques are called fsdp2"):
        technique("fsdp2", Level.PARALLELISM)(object)


def test_the_guide_names_everything_that_a_technique_has():
    for part in (*DeclaredTechnique._fields, *SIGNATURES):
        assert f"`{part}`" in GUIDE
