"""The class Workload of a suite, as the declarations that values are checked by."""

import re
from importlib import invalidate_caches

import pytest

from harness.config.optimizations import workload_fields
from harness.config.run import names
from harness.config.validation import SEE, ConfigError

HEADER = """
from __future__ import annotations
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Annotated, Any, ClassVar, Literal
from harness.bounds import Bounds, OnlyWith, PositiveInt

"""


@pytest.fixture
def read(tmp_path, monkeypatch):
    package = re.sub(r"\W", "_", tmp_path.name)
    folder = tmp_path / package / "toy"
    folder.mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path)

    def read(text):
        (folder / "workload.py").write_text(HEADER + text)
        invalidate_caches()
        return dict(workload_fields("toy", package))

    return read


@pytest.mark.parametrize("suite", names("suite"))
def test_every_workload_has_a_source(suite):
    assert workload_fields(suite)["source"]["type"] == "str"


def test_every_form_of_a_field_is_read(read):
    text = """
LEAST = 2
Colour = Literal["red", "blue"]

@dataclass
class Base:
    size: PositiveInt
    share: Annotated[float, Bounds(below=1)] = 0
    colour: Colour = "red"
    seen: ClassVar[int] = 0

@dataclass(kw_only=True)
class Workload(Base):
    size: Annotated[int, Bounds(at_least=LEAST, multiple_of="count")] = LEAST
    count: int
    data: dict[str, Any] | None = field(default=None, hash=False)
    tags: list[Any] = field(default_factory=list)
    steps: Annotated[Literal[1, 2], OnlyWith("colour", ("blue",))] = 1
    depth: Annotated[PositiveInt, OnlyWith("steps", (2,))] | None = None
    kind: Literal["x", None] = None
    given: Mapping[str, Any]
    set_by_code: int = field(init=False, default=2)

    def double(self) -> int:
        return 2 * self.size
"""
    fields = read(text)
    depth = {"type": "int", "at_least": 1, "only_with": {"steps": [2]}, "optional": True, "default": None}
    assert fields == {
        "size": {"type": "int", "at_least": 2, "multiple_of": "count", "default": 2},
        "share": {"type": "float", "below": 1, "default": 0.0},
        "colour": {"type": "str", "one_of": ["red", "blue"], "default": "red"},
        "count": {"type": "int"},
        "data": {"type": "dict", "optional": True, "default": None},
        "tags": {"type": "list", "default": []},
        "steps": {"type": "int", "one_of": [1, 2], "only_with": {"colour": ["blue"]}, "default": 1},
        "depth": depth,
        "kind": {"type": "str", "optional": True, "one_of": ["x"], "default": None},
        "given": {"type": "dict"},
    }
    assert list(fields)[:3] == ["size", "share", "colour"]
    assert isinstance(fields["share"]["default"], float)


SIZE = "Workload.size"
NO_TYPE = "expected int, float, str, bool, dict[str, Any], list[Any] or Literal"
READ_WITH = 'size: Annotated[int, OnlyWith("kind", ("a",))]'
FAULTS = [
    ("Workload = 3\n", "class Workload is missing"),
    ("class Workload:\n    size: int\n", "class Workload is no dataclass"),
    ("size: Szie", "name 'Szie' is not defined"),
    ("size: Fraction", f"{SIZE}: Fraction; {NO_TYPE}"),
    ("size: list[int]", f"{SIZE}: list[int]; {NO_TYPE}"),
    ("size: Annotated[int, Bounds(at_least=1)] = 0", f"{SIZE}=0: expected a whole number of at least 1"),
    ("size: Annotated[int, Bounds(at_leest=1)]", ".*at_leest"),
    (f"{READ_WITH} = 1", f"{SIZE}.only_with=kind: no such name; allowed: none"),
    (f"kind: str\n    {READ_WITH}", f"{SIZE}: a field that is read only with kind needs a default"),
]


@pytest.mark.parametrize(("text", "message"), FAULTS)
def test_a_class_that_breaks_a_rule_is_refused_in_one_line_that_names_the_file(read, text, message):
    with pytest.raises(ConfigError) as error:
        read(text if "Workload" in text else f"@dataclass\nclass Workload:\n    {text}\n")
    pattern = message if message.startswith(".*") else re.escape(message)
    assert re.fullmatch(rf"\w+/toy/workload\.py(:\d+)?: {pattern}.*{re.escape(SEE)}", str(error.value))
