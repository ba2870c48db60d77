"""An optimization's YAML: titles, techniques and their settings, checked before anything runs."""

import re

import pytest
import yaml

from harness.config.optimizations import optimizations, titles, variants
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


def test_an_optimization_is_a_yaml_with_titles(tree):
    assert optimizations("toy", tree) == ["bare", "tuned"]
    assert titles("toy", tree) == {
        "baseline": "As it is",
        "baseline_again": "Baseline again (noise)",
        "bare": "bare",
        "tuned.a": "Tuned, a",
        "tuned.b": "Tuned (b)",
    }
    (tree / "suite/toy/tuned.yaml").write_text("title: Tuned\nvariants: {a: {x: 1},\n  b: 3}\n")
    with pytest.raises(ConfigError, match=r"^conf/suite/toy/tuned.yaml:3: variants.b=3: expected the keys"):
        titles("toy", tree)


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
    ("name", "entry", "applies_to"),
    [
        ("techniques_alone", {"techniques": ["fsdp2"]}, ({"size": (2,)},)),
        ("techniques_alone", {"techniques": ["fsdp2"], "applies_to": [{"size": 3}]}, ({"size": (3,)},)),
        ("bare", {"techniques": ["fsdp2"]}, ()),
    ],
    ids=str,
)
def test_techniques_alone_apply_to_what_the_suite_says_unless_their_yaml_does(tree, name, entry, applies_to):
    _, found = made(tree, [name], **{name: entry})
    assert found.applies_to == applies_to


@pytest.mark.parametrize(
    ("name", "entry", "message"),
    [
        ("configured", {"settings": {"rate_B_per_s": 1}}, r"settings\.depth: missing; expected a wh"),
        ("configured", {"variants": {"a": {"depth": 0}}}, r"variants\.a\.depth=0: expected a whole"),
        ("configured", {"settings": {"depth": 1, "dept": 2}}, r"settings\.dept: no such name; did you mean"),
        ("late", {}, r"optimizations\.late\.by: missing; expected a whole number"),
        ("bare", {"settings": {"depth": 2}}, r"toy/bare\.py: class Settings is missing"),
        ("absent", {"settings": {"depth": 2}}, r"settings\.depth: no such name; allowed: techniques, title"),
        ("absent", {}, r"it lists no techniques, and suites/toy/absent.py with apply\(subject\) is missing"),
        ("absent", {"variants": {"a": {"title": 3}}}, "absent.variants.a.title=3: expected text"),
        ("absent", {"variants": {"a": 3}}, "absent.variants.a=3: expected the keys of a variant, such as"),
        ("absent", {"repeats": 0}, "absent.repeats=0: expected a whole number of at least 1"),
        ("absent", {"techniques": ["no_such"]}, "absent.techniques.no_such: no such name"),
    ],
    ids=str,
)
def test_a_mistake_in_an_optimization_is_refused(tree, name, entry, message):
    with pytest.raises(ConfigError, match=message):
        made(tree, **{name: entry})
