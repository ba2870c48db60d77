"""Mistakes in the YAML files under conf/ are refused in one line that names the file or the key."""

from __future__ import annotations

import shutil
from contextlib import nullcontext

import pytest

from harness.config import optimizations
from harness.config import run as config
from harness.config.validation import ConfigError, check_declarations, check_relations, check_value


@pytest.fixture
def conf(tmp_path, monkeypatch):
    """A copy of conf/, to be spoilt."""
    folder = tmp_path / "conf"
    shutil.copytree(config.CONF, folder)
    monkeypatch.setattr(config, "CONF", folder)
    monkeypatch.setattr(config, "optimizations", lambda suite: optimizations.optimizations(suite, folder))
    return folder


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("titel: x\n", r"suite\.optimizations\.wrong\.titel: no such name; did you mean title\?"),
        ("title: x: y\n", r"memory/wrong\.yaml:1: mapping values are not allowed here"),
        (
            "title: x\nvariants:\n  a: {title: y}\n  b: 3\n",
            r"^conf/suite/memory/wrong\.yaml:4: variants\.b=3: expected the keys of a variant",
        ),
        ("applies_to: {a: 1}\n", r"^conf/suite/memory/wrong\.yaml: applies_to=\{'a': 1\}: expected a list$"),
        ("variants: [a]\n", r"^conf/suite/memory/wrong\.yaml: variants=\['a'\]: expected KEY: VALUE lines$"),
        ("title: [a]\n", r"^conf/suite/memory/wrong\.yaml: title=\['a'\]: expected text$"),
        ("- title\n", r"^conf/suite/memory/wrong\.yaml: \['title'\]; expected KEY: VALUE lines$"),
        ("variants: {a: }\n", r"^conf/suite/memory/wrong\.yaml:1: variants\.a=null: expected the keys"),
    ],
)
def test_an_optimizations_file(conf, text, words):
    (conf / "suite" / "memory" / "wrong.yaml").write_text(text)
    with pytest.raises(ConfigError, match=words) as refused:
        config.compose_suite("memory", {})
    assert "\n" not in str(refused.value)


def test_fields_in_a_suites_file_are_refused_with_where_they_are_declared(conf):
    with (conf / "suite" / "memory.yaml").open("a") as file:
        file.write("fields: {seq_len: {type: int}}\n")
    with pytest.raises(ConfigError) as refused:
        config.compose_suite("memory", {})
    assert str(refused.value) == (
        "conf/suite/memory.yaml: fields: the class Workload of suites/memory/workload.py declares them; "
        "see docs/extend/adding-a-suite.md"
    )


@pytest.mark.parametrize("block", ["{dcqcn: {settings: {a: 1}}}", "{dcqcn: {titel: x}}", "{new: 3}", "3"])
def test_optimizations_in_a_suites_file_are_refused_with_where_they_belong(conf, block):
    with (conf / "suite" / "congestion.yaml").open("a") as file:
        file.write(f"optimizations: {block}\n")
    with pytest.raises(ConfigError) as refused:
        config.compose_suite("congestion", {})
    assert str(refused.value) == (
        "conf/suite/congestion.yaml: optimizations: the settings of each belong in a file of its own, "
        "conf/suite/congestion/<optimization>.yaml"
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("applies_to: {a: 1}\n", r"^conf/suite/memory\.yaml: applies_to=\{'a': 1\}: expected a list$"),
        (
            "sampling: {rounds: a}\n",
            r"^conf/suite/memory\.yaml: sampling\.rounds='a': expected a whole number$",
        ),
        ("feilds: {}\n", r"suite\.feilds: no such name; allowed: (?!.*\b(fields|optimizations)\b)"),
    ],
)
def test_a_suites_file(conf, text, words):
    with (conf / "suite" / "memory.yaml").open("a") as file:
        file.write(text)
    with pytest.raises(ConfigError, match=words) as refused:
        config.compose_suite("memory", {})
    assert "\n" not in str(refused.value)


def test_a_suite_whose_file_does_not_include_its_optimizations_is_refused(conf):
    file = conf / "suite" / "congestion.yaml"
    file.write_text(file.read_text().replace("  - congestion/every@_here_", "  # "))
    with pytest.raises(ConfigError) as refused:
        config.compose_suite("congestion", {})
    assert str(refused.value) == (
        "conf/suite/congestion.yaml: defaults: congestion/every@_here_ is missing, so "
        "conf/suite/congestion/dcqcn.yaml is not read; expected defaults: [congestion/every@_here_, _self_]"
    )


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ({"type": "integer"}, r"fields\.size\.type=integer: no such name; did you mean int\?"),
        ({"type": "int", "at_leest": 1}, r"fields\.size\.at_leest: no such name; did you mean at_least\?"),
        ({"type": "int", "not_above": "siz"}, r"fields\.size\.not_above=siz: no such name; allowed: none"),
        ({"type": "int", "not_above": "siz * 2"}, r"size\.not_above=siz \* 2: no such name; allowed: none"),
        ({"type": "int", "multiple_of": "name"}, r"size\.multiple_of=name: no such name; allowed: none$"),
        (
            {"type": "str", "at_least": 1},
            r"fields\.size\.at_least=1: expected a number, for an int or a float",
        ),
    ],
)
def test_the_declaration_of_a_field(field, words):
    with pytest.raises(ConfigError, match=words):
        check_declarations("fields", {"size": field, "name": {"type": "str"}})


@pytest.mark.parametrize(
    ("sequence", "positions", "refused"), [(8, None, False), (8, 8, False), (9, 8, True), (None, 8, False)]
)
def test_a_field_is_compared_with_another_where_both_have_a_value(sequence, positions, refused):
    fields = {"sequence": {"type": "int", "not_above": "positions"}, "positions": {"type": "int"}}
    with (
        pytest.raises(ConfigError, match=r"sequence=9: expected at most positions \(8\)")
        if refused
        else nullcontext()
    ):
        check_relations("w", {"sequence": sequence, "positions": positions}, fields)


@pytest.mark.parametrize(("part", "refused"), [(2, False), (3, True)])
def test_a_field_is_compared_with_a_part_of_another(part, refused):
    fields = {"part": {"type": "int", "not_above": "size * 0.25"}, "size": {"type": "int"}}
    with (
        pytest.raises(ConfigError, match=r"w\.part=3: expected at most size \* 0\.25 \(2\.0\)$")
        if refused
        else nullcontext()
    ):
        check_relations("w", {"part": part, "size": 8}, fields)


@pytest.mark.parametrize(("value", "refused"), [(6, False), (7, True), (0, False)])
def test_a_number_that_is_not_divisible(value, refused):
    with (
        pytest.raises(ConfigError, match=r"^w=7: expected a whole number divisible by 2$")
        if refused
        else nullcontext()
    ):
        check_value("w", value, {"type": "int", "divisible_by": 2})
