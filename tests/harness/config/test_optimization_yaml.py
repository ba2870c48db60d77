"""An optimization's YAML: titles, techniques and their settings, checked before anything runs."""

import re
from dataclasses import dataclass, replace
from typing import Any, Literal

import pytest
import yaml
from planned import RUN

from harness.config.optimizations import Variant, optimizations, titles, variants
from harness.config.techniques import checked_techniques
from harness.config.validation import ConfigError, DeclaredTechnique
from harness.sweep.plan import plan, read_plan, write_plan


@dataclass(frozen=True)
class ShardedSettings:
    dp_size: int | None = None
    mode: Literal["full", "half"] = "full"
    dtypes: dict[str, Any] | None = None
    ratio: float = 1


@dataclass(frozen=True)
class CompileSettings:
    pass


DECLARED = {
    "compile": DeclaredTechnique(2, CompileSettings, None, {}, (), ""),
    "sharded": DeclaredTechnique(1, ShardedSettings, None, {}, (), ""),
}
TUNED = """from dataclasses import dataclass
@dataclass
class Settings:
    x: int

def apply(subject, settings): ...
"""
PLAIN = {
    "title": "", "settings": {}, "techniques": [], "applies_to": [], "repeats": None,
    "variants": {},
}  # fmt: skip


@pytest.fixture
def made_up(monkeypatch):
    monkeypatch.setattr("suites.training.declared.TECHNIQUES", DECLARED)


@pytest.mark.usefixtures("made_up")
def test_techniques_are_names_or_names_with_settings_in_order():
    given = ["compile", {"sharded": {"dp_size": None, "mode": "half", "dtypes": {"p": "bf16"}, "ratio": 2}}]
    found = checked_techniques("here", given)
    assert found == (("compile", {}), ("sharded", {**given[1]["sharded"], "ratio": 2.0}))
    assert checked_techniques("here", [{"sharded": None}]) == (("sharded", {}),)


@pytest.mark.usefixtures("made_up")
@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["shraded"], r"here.shraded: no such name; did you mean sharded\? allowed: compile, sharded"),
        ([{"sharded": {"mod": 1}}], r"here.sharded.mod: no such name; did you mean mode\?"),
        ([{"sharded": {"mode": "third"}}], "here.sharded.mode='third': expected one of full, half"),
        ([{"sharded": {"dp_size": "2"}}], "here.sharded.dp_size='2': expected a whole number or null"),
        ([{"compile": {"mode": "x"}}], "here.compile.mode: no such name; allowed: none"),
        (["__init__"], "no such name"),
        ([{"sharded": {}, "compile": {}}], "expected a name, or"),
        ("compile", "here='compile': expected a list"),
    ],
    ids=str,
)
def test_a_mistake_in_techniques_is_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        checked_techniques("here", given)


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """Write a suite with an optimization without settings, one with, and a helper, which is none."""
    tree = tmp_path / re.sub(r"\W", "_", tmp_path.name)
    (tree / "suite/toy").mkdir(parents=True)
    (tree / "toy").mkdir()
    (tree / "suite/toy.yaml").write_text("baseline_title: As it is\n")
    (tree / "suite/toy/bare.yaml").write_text("")
    (tree / "toy/bare.py").write_text("def apply(subject): ...\n")
    (tree / "toy/tuned.py").write_text(TUNED)
    (tree / "toy/helper.py").write_text("def applied(subject): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    tuned = {"title": "Tuned", "variants": {"a": {"title": "Tuned, a", "x": 1}, "b": {"x": 2}}}
    (tree / "suite/toy/tuned.yaml").write_text(yaml.safe_dump(tuned))
    return tree


def test_an_optimization_is_a_yaml(tree):
    assert optimizations("toy", tree) == ["bare", "tuned"]


def test_titles_are_those_of_the_yamls(tree):
    assert titles("toy", tree) == {
        "baseline": "As it is",
        "baseline_again": "Baseline again (noise)",
        "bare": "bare",
        "tuned.a": "Tuned, a",
        "tuned.b": "Tuned (b)",
    }


def test_titles_of_a_variant_without_keys_are_refused_with_file_and_line(tree):
    (tree / "suite/toy/tuned.yaml").write_text("title: Tuned\nvariants: {a: {x: 1},\n  b: 3}\n")
    with pytest.raises(ConfigError, match=r"^conf/suite/toy/tuned.yaml:3: variants.b=3: expected the keys"):
        titles("toy", tree)


def config(interleave=False, **entries):
    return {
        "baseline_title": "As it is",
        "interleave": interleave,
        "fields": {"size": {"type": "int"}},
        "techniques_apply_to": [{"size": 2}],
        "baseline_again": False,
        "optimizations": {name: {**PLAIN, **entry} for name, entry in entries.items()},
    }


def test_the_baselines_are_the_harness_own(tree):
    made = variants("toy", config(bare={}), (), tree)
    assert [(one.name, one.title) for one in made] == [("baseline", "As it is"), ("bare", "bare")]
    made = variants("toy", config(bare={}, interleave=True), ["bare"], tree)
    assert [one.name for one in made] == ["baseline", "baseline_again", "bare"]
    assert [one.name for one in variants("toy", config(bare={}), ["bare"], tree)] == ["baseline", "bare"]


def test_a_variant_has_settings_and_a_title_of_its_own(tree):
    entry = {"settings": {"x": 0}, "variants": {"a": {"title": "One", "x": 1}, "b": {"x": 2}}}
    _, *made = variants("toy", config(tuned=entry), ["tuned"], tree)
    assert [(one.name, one.title, one.settings) for one in made] == [
        ("tuned.a", "One", {"x": 1}),
        ("tuned.b", "tuned.b", {"x": 2}),
    ]


def test_a_function_without_a_setting_that_it_needs_is_refused(tree):
    (tree / "toy/optimizations.py").write_text("def late(subject, by: int): ...\n")
    with pytest.raises(ConfigError, match=r"optimizations\.late\.by: missing; expected a whole number"):
        variants("toy", config(late={}), ["late"], tree)
    (made,) = variants("toy", config(late={"settings": {"by": 2}}), ["late"], tree)[1:]
    assert made.settings == {"by": 2}


@pytest.mark.parametrize(
    ("name", "entry", "applies_to"),
    [
        ("techniques_alone", {"techniques": ["fsdp2"]}, ({"size": (2,)},)),
        ("techniques_alone", {"variants": {"a": {"techniques": ["fsdp2"]}}}, ({"size": (2,)},)),
        ("techniques_alone", {"techniques": ["fsdp2"], "applies_to": [{"size": 3}]}, ({"size": (3,)},)),
        ("tuned", {}, ()),
        ("tuned", {"techniques": ["fsdp2"]}, ()),
    ],
    ids=str,
)
def test_techniques_alone_apply_to_what_the_suite_says_unless_their_yaml_does(tree, name, entry, applies_to):
    _, made = variants("toy", config(**{name: entry}), [name], tree)
    assert made.applies_to == applies_to


SETTINGS = """
from dataclasses import dataclass
from typing import Annotated
from harness.bounds import Bounds
@dataclass
class Settings:
    depth: Annotated[int, Bounds(at_least=1)]
    rate_B_per_s: float = 1.0
def apply(subject, settings): ...
"""


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (
            {"settings": {"rate_B_per_s": 1}},
            r"settings\.depth: missing; expected a whole number of at least 1",
        ),
        ({"settings": {"depth": "three"}}, r"settings\.depth='three': expected a whole number of at least 1"),
        (
            {"settings": {"depth": 1}, "variants": {"deep": {"depth": 0}}},
            r"variants\.deep\.depth=0: expected a whole number of at least",
        ),
        ({"settings": {"depth": 1, "dept": 2}}, r"settings\.dept: no such name; did you mean depth\?"),
    ],
    ids=str,
)
def test_settings_are_checked_against_the_class_of_the_module(tree, entry, message):
    (tree / "toy/configured.py").write_text(SETTINGS)
    with pytest.raises(ConfigError, match=message):
        variants("toy", config(configured=entry), (), tree)


def test_settings_are_those_that_the_class_takes(tree):
    (tree / "toy/configured.py").write_text(SETTINGS)
    _, made = variants("toy", config(configured={"settings": {"depth": 2}}), (), tree)
    assert made.settings == {"depth": 2, "rate_B_per_s": 1.0}


def test_settings_without_a_class_are_refused(tree):
    with pytest.raises(ConfigError, match=r"toy/bare\.py: class Settings is missing"):
        variants("toy", config(bare={"settings": {"depth": 2}}), (), tree)
    with pytest.raises(ConfigError, match=r"settings\.depth: no such name; allowed: techniques, title"):
        variants("toy", config(absent={"settings": {"depth": 2}}), (), tree)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({}, "it lists no techniques, and suites/toy/absent.py with apply\\(subject\\) is missing"),
        ({"variants": {"a": {"title": 3}}}, "absent.variants.a.title=3: expected text"),
        (
            {"variants": {"a": 3}},
            "absent.variants.a=3: expected the keys of a variant, such as {title: TEXT}",
        ),
        ({"repeats": 0}, "suite.optimizations.absent.repeats=0: expected a whole number of at least 1"),
        ({"techniques": ["no_such"]}, "suite.optimizations.absent.techniques.no_such: no such name"),
        ({"variants": {"a": {"techniques": ["none"]}}}, "absent.variants.a.techniques.none: no such name"),
    ],
    ids=str,
)
def test_an_optimization_that_nothing_applies_is_refused(tree, entry, message):
    with pytest.raises(ConfigError, match=message):
        variants("toy", config(absent=entry), (), tree)


def test_techniques_are_part_of_a_cell_and_of_its_identity():
    def cells(*techniques):
        made = Variant("x", "x", {"s": 1}, techniques)
        return [
            cell for group in plan(replace(RUN, variants=(made,)), "e", lambda v: "c") for cell in group.cells
        ]

    plain, with_one, with_other = cells(), cells(("fsdp2", {})), cells(("fsdp2", {"dp_size": 2}))
    assert plain[0].config["settings"] == {"s": 1}
    assert "techniques" not in plain[0].config
    assert with_other[0].config["techniques"] == [["fsdp2", {"dp_size": 2}]]
    assert len({cell.id for cell in (*plain, *with_one, *with_other)}) == 3 * len(plain)


def test_titles_are_kept_with_the_plan(tmp_path):
    write_plan(tmp_path, "toy", [], {"a.b": "A, b"})
    assert read_plan(tmp_path).titles == {"a.b": "A, b"}
    (tmp_path / "plan.json").write_text('{"suite": "toy", "cells": ["1"]}')
    assert read_plan(tmp_path) == ("toy", ("1",), {}, ())
