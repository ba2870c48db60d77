"""A workload is declared twice, in its suite's YAML and as a dataclass: names, types and defaults agree."""

import re
from dataclasses import MISSING, fields
from importlib import import_module

import pytest
from omegaconf import OmegaConf

from harness.config import compose_suite, names

READ_BY_PEOPLE = {"source"}


def declared_in_yaml(suite):
    """Return each field's type as an annotation, and its default."""
    config = OmegaConf.to_container(compose_suite(suite, {}).suite.fields)
    return {
        name: (one["type"] + (" | None" if one.get("optional") else ""), one.get("default", MISSING))
        for name, one in config.items()
    }


@pytest.mark.parametrize("suite", names("suite"))
def test_the_fields_of_a_workload_are_those_of_its_dataclass(suite):
    declared, workload = declared_in_yaml(suite), import_module(f"suites.{suite}").Workload
    known = {field.name: field for field in fields(workload)}
    assert set(declared) - READ_BY_PEOPLE <= set(known), "the dataclass lacks fields of the YAML"
    needed = {name for name, field in known.items() if _default(field) is MISSING}
    assert needed <= set(declared), "the YAML lacks fields that the dataclass needs"
    for name, (annotation, default) in declared.items():
        if name not in known:
            continue
        ours = re.sub(r"\b(dict|Mapping)\[str, Any\]", "dict", str(known[name].type)).replace(
            "list[Any]", "list"
        )
        assert ours == annotation, name
        if _default(known[name]) is not MISSING and default is not MISSING:
            assert _default(known[name]) == default, name


def _default(field):
    return field.default_factory() if field.default_factory is not MISSING else field.default
