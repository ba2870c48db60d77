"""The YAML files under conf/: what an optimization is, and mistakes, refused in a line that names the key."""

import re
import shutil

import pytest

from harness.config import optimizations
from harness.config import run as config
from harness.config.optimizations import applies, checked_alternatives, variants
from harness.config.validation import ConfigError, check_fields, check_relations


@pytest.fixture
def conf(tmp_path, monkeypatch):
    folder = tmp_path / "conf"
    shutil.copytree(
        config.CONF, folder, ignore=shutil.ignore_patterns("published", "claims", "report", "memory*")
    )
    monkeypatch.setattr(config, "CONF", folder)
    monkeypatch.setattr(config, "optimizations", lambda suite: optimizations.optimizations(suite, folder))
    return folder


WRONG, SUITE = "conf/suite/congestion/wrong.yaml", "conf/suite/congestion.yaml"
REFUSED = [
    (WRONG, "titel: x", "conf/: suite.optimizations.wrong.titel: no such name; did you mean title?"),
    (WRONG, "title: x: y", f"conf/: .*{WRONG}:1: mapping values are not allowed here"),
    (WRONG, "title: x\nvariants:\n  a: {title: y}\n  b: 3", f"{WRONG}:4: variants.b=3: expected the keys"),
    (WRONG, "applies_to: {a: 1}", f"{WRONG}: applies_to={{'a': 1}}: expected a list"),
    (WRONG, "- title", f"{WRONG}: ['title']; expected KEY: VALUE lines"),
    (SUITE, "sampling: {rounds: a}", f"{SUITE}: sampling.rounds='a': expected a whole number"),
    (SUITE, "feilds: {}", "conf/: suite.feilds: no such name; allowed: "),
    (SUITE, "optimizations: {new: 3}", f"{SUITE}: optimizations: the settings of each belong in a file of"),
]


@pytest.mark.parametrize(("file", "text", "said"), REFUSED)
def test_a_mistake_in_a_file_is_refused_in_one_line_that_names_it(conf, file, text, said):
    with (conf.parent / file).open("a") as opened:
        opened.write(f"{text}\n")
    with pytest.raises(ConfigError) as refused:
        config.compose_suite("congestion", {})
    assert re.match(re.escape(said).replace(r"\.\*", ".*"), str(refused.value)), str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("rule", "value", "allowed"),
    [
        ({"not_above": "other"}, 9, [8, None]),
        ({"not_above": "other * 0.25"}, 3, [2]),
        ({"divisible_by": 2}, 7, [6, 0]),
    ],
)
def test_a_number_within_another_or_a_part_of_it_or_a_multiple(rule, value, allowed):
    fields = {"size": {"type": "int", "default": None, **rule}, "other": {"type": "int"}}

    def check(value):
        check_relations("w", check_fields("w", {"size": value, "other": 8}, fields), fields)

    for one in allowed:
        check(one)
    with pytest.raises(ConfigError, match=rf"^w\.size={value}: expected "):
        check(value)


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
    """Write optimizations without and with settings."""
    tree = tmp_path / re.sub(r"\W", "_", tmp_path.name)
    (tree / "toy").mkdir(parents=True)
    (tree / "toy/bare.py").write_text("def apply(subject): ...\n")
    (tree / "toy/configured.py").write_text(CONFIGURED)
    (tree / "toy/optimizations.py").write_text("def late(subject, by: int): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    return tree


def made(tree, only=(), **entries):
    config = {
        "baseline_title": "As it is",
        "interleave": False,
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


FIELDS = {"operation": {"type": "str", "one_of": ["softmax", "attention"]}, "size": {"type": "int"}}


def alternatives(*given):
    return checked_alternatives("suite.applies_to", given, FIELDS)


def test_one_alternative_must_be_met_in_every_field():
    allowed = alternatives({"operation": "softmax", "size": [1, 2]}, {"operation": "attention", "gpu": True})
    assert applies(allowed, {"operation": "softmax", "size": 2}, gpu=False)
    assert not applies(allowed, {"operation": "softmax", "size": 3}, gpu=False)
    assert not applies(allowed, {"operation": "attention", "size": 3}, gpu=False)
    assert applies(allowed, {"operation": "attention", "size": 3}, gpu=True)
    assert applies((), {"operation": "softmax"}, gpu=False)
    for ends, sizes in (({"at_least": 2}, {2, 3, 9}), ({"at_least": 2, "at_most": 3}, {2, 3})):
        allowed = alternatives({"size": ends})
        assert {one for one in (1, 2, 3, 9, None) if applies(allowed, {"size": one}, gpu=False)} == sizes
