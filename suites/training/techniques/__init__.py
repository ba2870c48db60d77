"""Techniques, each a module that changes a training step; `build_step` combines them.

docs/extend/adding-a-technique.md lists what a module has, suites/training/declared.py the settings.
Techniques are applied in the order of their level, and within a level by name.

An optimization's list of techniques means the same in every suite, see `combined`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from typing import Any

from harness.config.validation import ConfigError, DeclaredTechnique, Role, check_value, fields_of
from harness.records import Unavailable
from suites.training.declared import TECHNIQUES
from suites.training.models import huggingface, user_model
from suites.training.step import EXACT, TrainingStep, loosest
from suites.training.workload import Workload

Techniques = Sequence[str | Mapping[str, Any] | Sequence[Any]]
"""Names, `{name: settings}` as YAML has them, or `[name, settings]` as JSON has them."""

Named = tuple[tuple[str, Mapping[str, Any]], ...]


def names() -> list[str]:
    """Return every technique that is declared."""
    return sorted(TECHNIQUES)


@cache
def load(name: str) -> Any:
    """Return a technique's module; raises ValueError where there is none."""
    declared(name)
    return import_module(f"{__name__}.{name}")


def declared(name: str) -> DeclaredTechnique:
    """Return what is declared of a technique; raises ValueError where there is none of the name."""
    if name not in TECHNIQUES:
        near = get_close_matches(name, names(), 1)
        hint = f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(names())}"
        raise ValueError(f"technique {name!r} does not exist{hint}")
    return TECHNIQUES[name]


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
    """Return a technique's settings; raises ValueError for a field or a value that it does not have."""
    kind = declared(name).settings
    allowed = fields_of(kind, any_type=True)
    for field, value in given.items():
        if field not in allowed:
            raise ValueError(f"technique {name}: no setting {field!r}; it has {', '.join(allowed) or 'none'}")
        try:
            check_value(f"technique {name}: {field}", value, allowed[field])
        except ConfigError as error:
            raise ValueError(str(error)) from None
    return kind(**given)


def refuse_combination(techniques: Named) -> None:
    """Raise `Unavailable`, with a reason that names both, where two techniques do not combine."""
    present = dict(techniques)
    by_role: dict[Role, str] = {}
    for name in present:
        role = role_of(name)
        if role in by_role:
            raise Unavailable(f"{by_role[role]} and {name} both decide {role}; choose one of them")
        if role is not None:
            by_role[role] = name
        for other, reason in declared(name).excludes.items():
            if other in present:
                raise Unavailable(f"{name} does not combine with {other}: {reason}")
    for name in present:
        for other in declared(name).needs:
            if other not in present:
                instead = by_role.get(role_of(other))  # type: ignore[arg-type]
                has = f", and this step has {instead}" if instead else ""
                raise Unavailable(f"{name} needs {other}{has}; list {other} too")


def build_step(
    workload: Workload | Mapping[str, Any], techniques: Techniques = (), seed: int = 0
) -> TrainingStep:
    """Return the training step that plain data describe; `workload` may have fields of a suite's own.

    Raises `Unavailable`, in one line, where a technique does not apply or two do not combine, ValueError
    where a name or a setting does not exist.
    """
    given = workload if isinstance(workload, Workload) else Workload.of(workload)
    chosen = named(techniques)
    refuse_combination(chosen)
    step = TrainingStep(given, given, seed, chosen)
    if given.hf_config is not None:
        step = huggingface.adopt(step)
    if given.model is not None:
        step = user_model.adopt(step)
    contracts = []
    replaced_by: dict[str, str] = {}  # by function of the model
    for name, values in sorted(chosen, key=lambda one: (declared(one[0]).level, one[0])):
        module, settings = load(name), settings_of(name, values)
        reason = getattr(module, "applies_to", lambda *_: None)(step.workload, settings)
        reason = reason or getattr(module, "unavailable", lambda: None)()
        if reason is not None:
            raise Unavailable(f"{name}: {reason}")
        contracts.append(getattr(module, "contract", lambda _: EXACT)(settings))
        changed = module.apply(step, settings)
        for replaced in (key for key, one in changed.functions.items() if step.functions.get(key) is not one):
            if replaced in replaced_by:
                raise Unavailable(f"{replaced_by[replaced]} and {name} both replace the model's {replaced}")
            replaced_by[replaced] = name
        step = changed
    if given.pp_size > step.pipeline_ranks and step.features.sharding != "none":
        raise Unavailable(f"pp_size={given.pp_size} needs the technique pipeline; else set pp_size=1")
    return replace(step, contract=loosest(contracts))


def combined(own: Techniques, further: Techniques) -> Named:
    """Return a step's `own` techniques with `further` ones, which is what an optimization's list means.

    Settings of an own technique are joined. A further one replaces the own one with its role, as FSDP2 does
    DDP.
    """
    by_role = {role_of(name): name for name, _ in named(further)}
    kept = [
        [name, settings]
        for name, settings in named(own)
        if (role := role_of(name)) is None or by_role.get(role, name) == name
    ]
    return named([*kept, *further])


def apply_techniques(step: TrainingStep, techniques: Techniques) -> TrainingStep:
    """Return the step with further techniques, see `combined`; `Unavailable` where its ranks would change."""
    changed = build_step(step.given, combined(step.techniques, techniques), step.seed)
    if step.ranks not in (1, changed.ranks):
        taken = f"{strategy_of(changed)} takes {changed.ranks} ranks here"
        raise Unavailable(f"{taken}, and the workload has {step.ranks}")
    return changed


def role_of(name: str) -> Role | None:
    """Return what a technique decides alone; None where it decides nothing alone."""
    return declared(name).role


def strategy_of(step: TrainingStep) -> str | None:
    """Return the technique that decides how ranks share the model; None where there is none."""
    return next((name for name, _ in step.techniques if role_of(name) is Role.PARALLELISM), None)
