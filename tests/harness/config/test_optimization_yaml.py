"""An optimization's YAML: titles, techniques and their settings, checked before anything runs."""

import re

import pytest
import yaml

from harness.config.optimizations import variants
from harness.config.validation import ConfigError

CONFIGURED = """
from dataclasses import dataclass
from typing import Annotated
from harness.bounds import Bounds
@dataclass
class Settings:
    depth: Annotated[int, Bounds(at_least=1)]
    rate_B_per_s: float = 1.0
def apply(subject, settings): ...
"""
PLAIN = {"title": "", "settings": {}, "techniques": [], "applies_to": [], "repeats": None, "variants": {}}


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """Write a suite with optimizations without and with settings, and a helper, which is none."""
    tree = tmp_path / re.sub(r"\W", "_", tmp_path.name)
    (tree / "suite/toy").mkdir(parents=True)
    (tree / "toy").mkdir()
    (tree / "suite/toy.yaml").write_text("baseline_title: As it is\n")
    (tree / "suite/toy/bare.yaml").write_text("")
    tuned = {"title": "Tuned", "variants": {"a": {"title": "Tuned, a", "x": 1}, "b": {"x": 2}}}
    (tree / "suite/toy/tuned.yaml").write_text(yaml.safe_dump(tuned))
    (tree / "toy/bare.py").write_text("def apply(subject): ...\n")
    (tree / "toy/configured.py").write_text(CONFIGURED)
    (tree / "toy/helper.py").write_text("def applied(subject): ...\n")
    (tree / "toy/optimizations.py").write_text("def late(subject, by: int): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    return tree


def made(tree, only=(), interleave=False, **entries):
    """Return the variants of a suite with these optimizations."""
    config = {
        "baseline_title": "As it is",
        "interleave": interleave,
        "fields": {"size": {"type": "int"}},
        "techniques_apply_to": [{"size": 2}],
        "baseline_again": False,
        "optimizations": {name: {**PLAIN, **entry} for name, entry in entries.items()},
    }
    return variants("toy", config, only, tree)


def test_a_variant_has_settings_and_a_title_of_its_own(tree):
    entry = {"settings": {"depth": 1}, "variants": {"a": {"title": "One"}, "b": {"depth": 2}}}
    _, *found = made(tree, ["configured"], configured=entry)
    assert [(one.name, one.title, one.settings) for one in found] == [
        ("configured.a", "One", {"depth": 1, "rate_B_per_s": 1.0}),
        ("configured.b", "configured.b", {"depth": 2, "rate_B_per_s": 1.0}),
    ]
    assert made(tree, ["late"], late={"settings": {"by": 2}})[1].settings == {"by": 2}


@pytest.mark.parametrize(
    ("name", "entry", "message"),
    [
        ("configured", {"settings": {"rate_B_per_s": 1}}, r"settings\.depth: missing; expected a wh"),
        ("configured", {"settings": {"depth": 1, "dept": 2}}, r"settings\.dept: no such name; did you mean"),
        ("late", {}, r"optimizations\.late\.by: missing; expected a whole number"),
        ("bare", {"settings": {"depth": 2}}, r"toy/bare\.py: class Settings is missing"),
        ("absent", {}, r"it lists no techniques, and suites/toy/absent.py with apply\(subject\) is missing"),
        ("absent", {"repeats": 0}, "absent.repeats=0: expected a whole number of at least 1"),
        ("absent", {"techniques": ["no_such"]}, "absent.techniques.no_such: no such name"),
    ],
    ids=str,
)
def test_a_mistake_in_an_optimization_is_refused(tree, name, entry, message):
    with pytest.raises(ConfigError, match=message):
        made(tree, **{name: entry})
