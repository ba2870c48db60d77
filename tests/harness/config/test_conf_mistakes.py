"""Mistakes in the YAML files under conf/ are refused in one line that names the file or the key."""

import re
import shutil

import pytest

from harness.config import optimizations
from harness.config import run as config
from harness.config.validation import ConfigError, check_fields, check_relations


@pytest.fixture
def conf(tmp_path, monkeypatch):
    """A copy of conf/, to be spoilt."""
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
