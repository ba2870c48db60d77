"""The fields read in a class's source are those that the imported class has."""

import sys
from dataclasses import MISSING, asdict, fields
from importlib import import_module
from types import NoneType, UnionType
from typing import Annotated, Literal, Union, get_args, get_origin, get_type_hints

import pytest

from harness.bounds import OnlyWith
from harness.config.code_fingerprint import ROOT, file_of, module_of
from harness.config.dataclass_fields import fields_of, workload_fields
from harness.config.protocols import SEE
from harness.config.run import names
from harness.config.validation import ConfigError
from harness.config.variants.techniques import files as technique_files

CLASSES = {
    **{suite: (f"suites.{suite}", "Workload") for suite in names("suite")},
    **{f"technique {name}": (module_of(file), "Settings") for name, file in technique_files().items()},
}


def allowed_by(hint):
    """Return what a type hint allows, as `harness.config.validation` declares fields; choices are sorted.

    `Literal["b", "a"] | None` may be what `typing` remembers of an equal one in another order.
    """
    if get_origin(hint) in (Union, UnionType):
        of = [one for one in get_args(hint) if one is not NoneType]
        return {**(allowed_by(of[0]) if len(of) == 1 else {}), "optional": True}
    if get_origin(hint) is Annotated:
        stated = {}
        for one in hint.__metadata__:
            if isinstance(one, OnlyWith):
                stated["only_with"] = {one.field: list(one.values)}
            else:
                stated |= {rule: bound for rule, bound in asdict(one).items() if bound is not None}
        return {**allowed_by(hint.__origin__), **stated}
    if get_origin(hint) is Literal:
        return {"type": type(get_args(hint)[0]).__name__, "one_of": sorted(get_args(hint))}
    return {"type": (get_origin(hint) or hint).__name__}


def declared_by(kind):
    """Return the fields of a dataclass, by its own account."""
    hints = get_type_hints(kind, include_extras=True)
    found = {}
    for one in fields(kind):
        default = one.default if one.default_factory is MISSING else one.default_factory()
        found[one.name] = {
            **allowed_by(hints[one.name]),
            **({} if default is MISSING else {"default": default}),
        }
    return found


def assert_read(file, name, kind):
    read, own = fields_of(file, name, any_type=True), declared_by(kind)
    assert list(read) == list(own)
    for field, declared in read.items():
        choices = {"one_of": sorted(declared["one_of"])} if "one_of" in declared else {}
        assert {**declared, **choices} == own[field], field


@pytest.mark.parametrize("which", CLASSES)
def test_the_fields_read_are_those_of_the_imported_class(which):
    module, name = CLASSES[which]
    assert_read(file_of(module), name, getattr(import_module(module), name))


@pytest.mark.parametrize("suite", names("suite"))
def test_every_workload_has_a_source(suite):
    assert workload_fields(suite)["source"]["type"] == "str"


FORMS = '''
import dataclasses
from dataclasses import KW_ONLY, dataclass, field
from typing import Annotated, Any, ClassVar, Literal
from collections.abc import Mapping
from harness.bounds import Bounds, OnlyWith, PositiveInt
from suites.training import workload as training


LEAST: int = 2
Colour = Literal["red", "blue"]
Small = Annotated[float, Bounds(below=1)]
BLUE = OnlyWith("colour", ("blue", None))

@dataclass
class Base:
    size: PositiveInt
    share: Small = 0
    colour: Colour = "red"
    seen: ClassVar[int] = 0

@dataclass
class Other:
    extra: bool = True
    share: float = 2.0

@dataclass(kw_only=True)
class Workload(Base, Other):
    """Base classes, overrides, and each form of a default."""

    colour: Literal["blue"] | None = None
    size: Annotated[int, Bounds(at_least=LEAST, multiple_of="count")] = LEAST
    count: int
    data: dict[str, Any] | None = dataclasses.field(default=None, hash=False)
    tags: list[Any] = field(default_factory=list)
    steps: Annotated[Literal[1, 2], BLUE] = 1
    depth: Annotated[PositiveInt, OnlyWith("steps", (2,))] | None = None

    def double(self) -> int:
        return 2 * self.size

@dataclass
class Inheriting(Base):
    share: Small
    size: PositiveInt
    colour: Literal["red"] | None

@dataclass(slots=True)
class Slotted:
    size: int = 1

@dataclass(slots=True)
class OfSlots(Slotted, object):
    size: int

@dataclass(frozen=True, kw_only=True)
class OfTraining(training.Workload):
    seq_len: int = 8
'''


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Write a module into the package `forms` and return its file."""
    (tmp_path / "forms").mkdir()
    monkeypatch.syspath_prepend(tmp_path)

    def write(text):
        file = tmp_path / "forms" / "__init__.py"
        file.write_text(text)
        return file

    yield write
    sys.modules.pop("forms", None)


@pytest.mark.parametrize("name", ["Base", "Workload", "Inheriting", "OfSlots", "OfTraining"])
def test_every_form_is_read_as_python_takes_it(written, name):
    assert_read(written(FORMS), name, getattr(import_module("forms"), name))


@pytest.mark.parametrize(
    "text",
    [
        "from .own import Workload\n",
        "from forms import own\n@dataclass\nclass Workload(own.Workload):\n    pass\n",
    ],
)
def test_a_class_of_the_packages_own_modules_is_found(written, text, monkeypatch, tmp_path):
    monkeypatch.setattr("harness.config.protocols.file_of", lambda name, root=tmp_path: file_of(name, root))
    file = written("from dataclasses import dataclass\n" + text)
    (file.parent / "own.py").write_text(
        "from dataclasses import dataclass\n@dataclass\nclass Workload:\n    size: int = 3\n"
    )
    assert fields_of(file, "Workload") == {"size": {"type": "int", "default": 3}}


def test_the_defaults_of_numbers_are_as_a_value_would_be(written):
    read = fields_of(written(FORMS), "Base")
    assert isinstance(read["share"]["default"], float)


def test_none_among_choices_makes_a_field_optional(written):
    text = '@dataclass\nclass Workload:\n    a: Literal["x", None] = None\n'
    expected = {"type": "str", "optional": True, "one_of": ["x"], "default": None}
    assert fields_of(written(text), "Workload") == {"a": expected}


def test_a_field_that_code_sets_cannot_be_set(written):
    text = "@dataclass\nclass Workload:\n    a: int = 1\n    b: int = field(init=False, default=2)\n"
    assert fields_of(written(text), "Workload") == {"a": {"type": "int", "default": 1}}


FAULTS = {
    "no class": ("Workload = 3\n", "class Workload is missing"),
    "no dataclass": ("class Workload:\n    size: int\n", "class Workload is no dataclass"),
    "no base": (
        "@dataclass\nclass Workload(other.Base):\n    size: int\n",
        "Workload: class other.Base is missing",
    ),
    "a base that is no dataclass": (
        "class Base:\n    pass\n@dataclass\nclass Workload(Base):\n    size: int\n",
        "Workload: class Base is no dataclass",
    ),
    "no annotation": ("size = 3", "Workload.size has no annotation, so it is no field"),
    "another type": (
        "size: Fraction",
        "Workload.size: Fraction; expected int, float, str, bool, dict[str, Any], list[Any] or Literal",
    ),
    "two types": (
        "size: int | str",
        "Workload.size: int | str; expected int, float, str, bool, dict[str, Any], list[Any] or Literal",
    ),
    "a computed default": ("size: int = 2**10", "Workload.size: 2 ** 10 is no literal"),
    "a default by a call": ("size: int = most()", "Workload.size: most() is no literal"),
    "another factory": (
        "size: list[Any] = field(default_factory=most)",
        "Workload.size: default_factory=most; expected list or dict",
    ),
    "a default that is not allowed": (
        "size: Annotated[int, Bounds(at_least=1)] = 0",
        "Workload.size=0: expected a whole number of at least 1",
    ),
    "a default of another type": ('size: int = "3"', "Workload.size='3': expected a whole number"),
    "None without | None": ("size: int = None", "Workload.size: missing; expected a whole number"),
    "an unknown bound": (
        "size: Annotated[int, Bounds(at_leest=1)]",
        "Workload.size.at_leest: no such name; did you mean at_least? allowed: above, at_least, at_most, ",
    ),
    "a type as a bound": (
        'size: Annotated[int, Bounds(type="str")]',
        "Workload.size.type: no such name; allowed",
    ),
    "a bound without its name": (
        "size: Annotated[int, Bounds(1)]",
        "Workload.size: Bounds(1); expected Bounds(",
    ),
    "a bound of text": (
        "size: Annotated[str, Bounds(at_least=1)]",
        "Workload.size.at_least=1: expected a number, for an int or a float",
    ),
    "a computed bound": (
        "size: Annotated[int, Bounds(at_least=most())]",
        "Workload.size: most() is no literal",
    ),
    "a multiple of no field": (
        'step: int\n    size: Annotated[int, Bounds(multiple_of="stap")]',
        "Workload.size.multiple_of=stap: no such name; did you mean step? allowed: step",
    ),
    "a multiple of itself": (
        'size: Annotated[int, Bounds(multiple_of="size")]',
        "Workload.size.multiple_of=size: no such name; allowed: none",
    ),
    "a default that instances would share": (
        "size: list[Any] = [1]",
        "Workload.size=[1]: expected field(default_factory=list)",
    ),
    "a reader that is no field": (
        'size: Annotated[int, OnlyWith("kind", ("a",))] = 1',
        "Workload.size.only_with=kind: no such name; allowed: none",
    ),
    "a reader that cannot be": (
        'kind: Literal["a", "b"]\n    size: Annotated[int, OnlyWith("kind", ("c",))] = 1',
        "Workload.size.only_with.kind='c': expected one of a, b",
    ),
    "a field of some readers without a default": (
        'kind: str\n    size: Annotated[int, OnlyWith("kind", ("a",))]',
        "Workload.size: a field that is read only with kind needs a default",
    ),
    "readers without their field": (
        'size: Annotated[int, OnlyWith(("a",))] = 1',
        "Workload.size: OnlyWith(('a',)); expected OnlyWith(",
    ),
    "elements that are not checked": ("size: list[int]", "Workload.size: list[int]; expected int, "),
    "a base of another project": (
        "from abc import ABC\n@dataclass\nclass Workload(ABC):\n    size: int\n",
        "Workload: class ABC is not of this project, so its fields cannot be read",
    ),
    "its own base": (
        "@dataclass\nclass Workload(Workload):\n    size: int\n",
        "Workload: class Workload is missing",
    ),
    "a type that is itself": (
        "Size = Size\n@dataclass\nclass Workload:\n    size: Size\n",
        "Workload.size: Size; expected int, ",
    ),
    "a default that is itself": (
        "A = B\nB = A\n@dataclass\nclass Workload:\n    size: int = A\n",
        "Workload.size: A is no literal",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_class_that_breaks_a_rule_is_refused_in_one_line_that_names_the_file(tmp_path, fault):
    text, message = FAULTS[fault]
    (tmp_path / "toy").mkdir()
    file = tmp_path / "toy" / "__init__.py"
    file.write_text(text if "Workload" in text else f"@dataclass\nclass Workload:\n    {text}\n")
    with pytest.raises(ConfigError) as error:
        workload_fields("toy", tmp_path)
    assert str(error.value).startswith(f"{file}: {message}")
    assert str(error.value).endswith(f". {SEE}")
    assert "\n" not in str(error.value)


def test_the_file_is_named_as_it_is_in_the_project():
    with pytest.raises(ConfigError, match=r"^suites/training/__init__.py: class Workload is missing"):
        workload_fields("training", ROOT / "suites")
