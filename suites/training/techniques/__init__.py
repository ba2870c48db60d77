"""Techniques, each a module of this folder that changes a training step; `build_step` combines them.

A module has a sentence of what it is and its source, and

- `LEVEL`: when it is applied, see `step.Level`; the order in which techniques are listed says nothing.
- `Settings`: a frozen dataclass, with a sentence for each field.
- `contract(settings)`: how closely its losses follow plain PyTorch's, see `contract.py`.
- `apply(step, settings)`: the changed step; raises `Unavailable` where this step cannot be changed so.

and, where there is something to say,

- `ROLE`: what it decides; of two techniques of one role a step has one.
- `EXCLUDES`: techniques that it does not combine with, each with the reason.
- `NEEDS`: techniques without which it means nothing.
- `applies_to(workload, settings)`: why it does not apply to a workload; None where it does.
- `unavailable()`: what this machine lacks for it; None where it lacks nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass, replace
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from harness.records import Unavailable
from suites.training import huggingface
from suites.training.contract import loosest
from suites.training.step import TrainingStep
from suites.training.workload import Workload

Techniques = Sequence[str | Mapping[str, Any] | Sequence[Any]]
"""Names, `{name: settings}` as YAML has them, or `[name, settings]` as JSON has them."""

Named = tuple[tuple[str, Mapping[str, Any]], ...]

REQUIRED = ("LEVEL", "Settings", "contract", "apply")


def names() -> list[str]:
    """Return every technique: the modules of this folder."""
    return sorted(one.stem for one in Path(__file__).parent.glob("*.py") if one.stem != "__init__")


@cache
def load(name: str) -> Any:
    """Return a technique's module; raises ValueError where there is none or it is incomplete."""
    if name not in names():
        near = get_close_matches(name, names(), 1)
        hint = f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(names())}"
        raise ValueError(f"technique {name!r} does not exist{hint}")
    module = import_module(f"{__name__}.{name}")
    missing = [one for one in REQUIRED if not hasattr(module, one)]
    if missing or not is_dataclass(module.Settings):
        raise ValueError(f"technique {name!r} lacks {', '.join(missing) or 'a dataclass as its Settings'}")
    return module


def named(techniques: Techniques) -> Named:
    """Return (name, settings) of each technique; settings of one that is listed twice are joined."""
    joined: dict[str, dict[str, Any]] = {}
    for one in techniques:
        if isinstance(one, str):
            pairs: list[tuple[str, Any]] = [(one, {})]
        elif isinstance(one, Mapping):
            pairs = list(one.items())
        else:
            pairs = [(one[0], one[1])]
        for name, settings in pairs:
            joined.setdefault(name, {}).update(settings or {})
    return tuple(joined.items())


def settings_of(name: str, given: Mapping[str, Any]) -> Any:
    """Return a technique's `Settings`; raises ValueError for a field or a value that it does not have."""
    kind = load(name).Settings
    allowed = get_type_hints(kind)
    for field, value in given.items():
        if field not in allowed:
            raise ValueError(f"technique {name}: no setting {field!r}; it has {', '.join(allowed) or 'none'}")
        choices = choices_of(allowed[field])
        if choices and value not in choices:
            raise ValueError(f"technique {name}: {field}={value!r} is none of {', '.join(map(str, choices))}")
    return kind(**given)


def choices_of(annotation: Any) -> list[Any]:
    """Return what a field of type `Literal[...]` may hold, None among it; nothing for other types."""
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    if get_origin(annotation) in (Union, UnionType):
        choices = [choices_of(one) for one in get_args(annotation) if one is not NoneType]
        return [None, *choices[0]] if choices[0] else []
    return []


def refuse_combination(techniques: Named) -> None:
    """Raise `Unavailable`, with a reason that names both, where two techniques do not combine."""
    present = dict(techniques)
    by_role: dict[str, str] = {}
    for name in present:
        module = load(name)
        role = getattr(module, "ROLE", None)
        if role is not None and role in by_role:
            raise Unavailable(f"{by_role[role]} and {name} both decide {role}; choose one of them")
        if role is not None:
            by_role[role] = name
        for other, reason in getattr(module, "EXCLUDES", {}).items():
            if other in present:
                raise Unavailable(f"{name} does not combine with {other}: {reason}")
        for other in getattr(module, "NEEDS", ()):
            if other not in present:
                raise Unavailable(f"{name} needs {other}")


def build_step(
    workload: Workload | Mapping[str, Any], techniques: Techniques = (), seed: int = 0
) -> TrainingStep:
    """Return the training step that plain data describe; the same step in any process.

    `workload` may be a suite's, with fields of its own. Raises `Unavailable`, in one line, where a technique
    does not apply or two do not combine, ValueError where a name or a setting does not exist.
    """
    given = workload if isinstance(workload, Workload) else Workload.of(workload)
    chosen = named(techniques)
    refuse_combination(chosen)
    step = TrainingStep(given, given, seed, chosen)
    if given.hf_config is not None:
        step = huggingface.adopt(step)
    contracts = []
    for name, values in sorted(chosen, key=lambda one: load(one[0]).LEVEL):
        module, settings = load(name), settings_of(name, values)
        reason = getattr(module, "applies_to", lambda *_: None)(step.workload, settings)
        reason = reason or getattr(module, "unavailable", lambda: None)()
        if reason is not None:
            raise Unavailable(f"{name}: {reason}")
        contracts.append(module.contract(settings))
        step = module.apply(step, settings)
    return replace(step, contract=loosest(contracts))


def replacing(techniques: Techniques, more: Techniques) -> Techniques:
    """Return `techniques` without those whose role one of `more` takes, then `more`.

    So a suite's baseline shares the model by DDP, and an optimization that names FSDP2 takes its place.
    """
    roles = {role_of(name): name for name, _ in named(more)}
    kept = [
        [name, settings]
        for name, settings in named(techniques)
        if role_of(name) is None or roles.get(role_of(name), name) == name
    ]
    return [*kept, *more]


def role_of(name: str) -> str | None:
    """Return what a technique decides; None where it shares that with any other."""
    role: str | None = getattr(load(name), "ROLE", None)
    return role


def apply_techniques(step: TrainingStep, techniques: Techniques) -> TrainingStep:
    """Return the step with further techniques; those it has already take further settings."""
    return build_step(step.given, [*step.techniques, *techniques], step.seed)


def applies_to(workload: Workload | Mapping[str, Any], techniques: Techniques) -> str | None:
    """Return why a combination does not apply to a workload; None where it does. Builds nothing."""
    try:
        build_step(workload, techniques)
    except Unavailable as reason:
        return str(reason)
    return None
