"""The fields of a dataclass as declarations, which `harness.config.validation` checks values by.

A suite declares its workloads in a class of its package's workload.py, an optimization its
settings as the parameters of its function, or in the class `Settings` of its module. The parent imports them,
so their imports need no torch. The annotation of a field says what is allowed: int, float, str, bool, dict,
list or `Literal[...]`, each or None, numbers within the bounds of `Annotated[int, Bounds(at_least=1)]`, read
only where another field has the values of `OnlyWith`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, fields, is_dataclass
from enum import StrEnum
from functools import cache
from importlib import import_module
from inspect import signature
from types import NoneType, SimpleNamespace, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from harness.bounds import Bounds, OnlyWith
from harness.config.protocols import SEE
from harness.config.validation import TYPES, ConfigError, Fields, check_declarations, check_value

PLAIN = tuple(kinds[0] for kinds in TYPES.values())


class Role(StrEnum):
    """What a technique may decide alone: of two techniques with one role a step has one."""

    ACTIVATIONS = "what becomes of activations"
    TENSOR_PARALLELISM = "how ranks share each layer"
    EXPERT_PARALLELISM = "how ranks share each layer's experts"
    CONTEXT_PARALLELISM = "how ranks share each sequence"
    PIPELINE_PARALLELISM = "how ranks share the layers among them"
    PARALLELISM = "how ranks share the model"


class DeclaredTechnique(NamedTuple):
    """What is known of a technique before any cell runs; suites/training/declared.py declares them."""

    folder: str  # of its module
    level: int  # its place in the order in which techniques are applied
    settings: type  # a frozen dataclass with a default for each field
    role: Role | None
    excludes: Mapping[str, str]  # techniques that it does not combine with, with the reason
    needs: tuple[str, ...]  # techniques without which it means nothing
    no_dry_run: str  # why fake tensors cannot show it; "" where they can

    @property
    def about(self) -> str:
        """Return what it is, in a sentence."""
        return " ".join((self.settings.__doc__ or "").partition("\n\n")[0].split())


EXPECTED = "expected int, float, str, bool, dict[str, Any], list[Any] or Literal[...], each or None"


@cache
def declared_in(module: str, name: str) -> Fields:
    """Return the fields of a module's dataclass; raises ConfigError, one line that names the file."""
    file = f"{module.replace('.', '/')}.py"
    try:
        kind = getattr(import_module(module), name, None)
        if not isinstance(kind, type):
            raise ConfigError(f"class {name} is missing")
        return fields_of(kind)
    except SyntaxError as error:
        raise ConfigError(f"{file}:{error.lineno}: {error.msg}. {SEE}") from None
    except Exception as error:
        raise ConfigError(f"{file}: {' '.join(str(error).split())}. {SEE}") from None


def parameters_of(function: Callable[..., Any]) -> Fields:
    """Return the parameters of a function after its first, as fields; raises ConfigError."""
    parameters = list(signature(function).parameters.values())[1:]
    annotated = SimpleNamespace(__annotations__={one.name: one.annotation for one in parameters})
    hints = get_type_hints(annotated, function.__globals__, include_extras=True)
    name = function.__name__
    declared = {
        one.name: _field(
            f"{name}.{one.name}", hints[one.name], MISSING if one.default is one.empty else one.default
        )
        for one in parameters
    }
    check_declarations(name, declared)
    return declared


def fields_of(kind: type, any_type: bool = False) -> Fields:
    """Return the fields of a dataclass that can be set, in their order; raises ConfigError.

    `any_type`: a field whose type cannot be checked takes any value, instead of being refused.
    """
    if not is_dataclass(kind):
        raise ConfigError(f"class {kind.__name__} is no dataclass")
    hints = get_type_hints(kind, include_extras=True)
    for name, value in vars(kind).items():
        if isinstance(value, PLAIN) and name not in hints and not name.startswith("__"):
            raise ConfigError(f"{kind.__name__}.{name} has no annotation, so it is no field")
    declared = {
        one.name: _field(
            f"{kind.__name__}.{one.name}",
            hints[one.name],
            one.default if one.default_factory is MISSING else one.default_factory(),
            any_type,
        )
        for one in fields(kind)
        if one.init
    }
    check_declarations(kind.__name__, declared)
    return declared


def _field(where: str, hint: Any, default: Any, any_type: bool = False) -> Mapping[str, Any]:
    """Return what a field allows; `default`: MISSING where it has none."""
    allowed = allowed_by(hint)
    if allowed.get("type", "str") not in TYPES:
        if not any_type:
            name = hint.__name__ if isinstance(hint, type) and not get_args(hint) else hint
            raise ConfigError(f"{where}: {name}; {EXPECTED}")
        allowed = {"optional": True}
    return allowed if default is MISSING else {**allowed, "default": check_value(where, default, allowed)}


def allowed_by(hint: Any) -> Mapping[str, Any]:
    """Return what a type allows; its `type` is none of `TYPES` where values cannot be checked."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        rules = dict(allowed_by(parts[0]))
        for one in parts[1:]:
            if isinstance(one, Bounds):
                rules |= {rule: bound for rule, bound in asdict(one).items() if bound is not None}
            elif isinstance(one, OnlyWith):
                rules["only_with"] = {one.field: list(one.values)}
        return rules
    if origin in (Union, UnionType) and NoneType in parts and len(parts) == 2:
        (other,) = (one for one in parts if one is not NoneType)
        return {**allowed_by(other), "optional": True}
    if origin is Literal:
        values = [one for one in parts if one is not None]
        types = {type(one).__name__ for one in values}
        optional = {"optional": True} if None in parts else {}
        return {**({"type": types.pop()} if len(types) == 1 else {}), **optional, "one_of": values}
    plain = dict if origin is Mapping else origin or hint
    if getattr(plain, "__name__", "") in TYPES and (not parts or parts[-1] is Any):
        return {"type": plain.__name__}
    return {"type": str(hint)}
