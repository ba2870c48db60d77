"""The recipe of `harness.fit`, a list of techniques, and its what-ifs: changes of it that are tried."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from harness.config.validation import ConfigError

if TYPE_CHECKING:
    from harness.config.run import Run
    from harness.config.variants.optimizations import Variant
    from harness.config.variants.techniques import Named

LATER = "try it with what_ifs=all"
"""Why a slow what-if is not tried."""

SPLITTING = ("TENSOR_PARALLELISM", "CONTEXT_PARALLELISM", "PIPELINE_PARALLELISM")
"""Roles of techniques whose number of ranks is not that of `devices`."""


def settings_of_fit() -> Mapping[str, Any]:
    """Return conf/fit.yaml."""
    from harness.config.variants.optimizations import CONF, read_yaml

    return read_yaml(CONF / "fit.yaml")


def recipe_of(given: Mapping[str, str], devices: int, left_out: Collection[str] = ()) -> Named:
    """Return the techniques of the question; raises ConfigError.

    `left_out`: techniques of the default recipe that this model cannot have.
    """
    from harness.config.variants.technique_list import combination

    if "techniques" in given:
        listed = list_of("techniques", given["techniques"])
    else:
        default = settings_of_fit()["techniques"]["one" if devices == 1 else "several"]
        listed = [name for name in default if name not in left_out]
    recipe = combination([*listed, *optimizer_of(given)])
    refuse_sharing(recipe, devices)
    return recipe


def optimizer_of(given: Mapping[str, str]) -> list[Mapping[str, Any]]:
    """Return the technique that stands for `optimizer`, none for AdamW; raises ConfigError."""
    from harness.config.variants.techniques import file_of, settings_of

    optimizer = given.get("optimizer", "adamw")
    allowed = settings_of(file_of("optimizer"))["name"]["one_of"]
    if optimizer not in allowed:
        raise ConfigError(f"optimizer={optimizer}: expected one of {', '.join(allowed)}")
    return [] if optimizer == "adamw" else [{"optimizer": {"name": optimizer}}]


def refuse_sharing(recipe: Named, devices: int) -> None:
    """Raise ConfigError where a recipe does not share the model over just these devices."""
    from harness.config.variants.techniques import file_of, literal

    allowed = [
        name for name in techniques_of_role("PARALLELISM") if literal(file_of(name), "NO_DRY_RUN") is None
    ]
    for name in (name for role in SPLITTING for name in techniques_of_role(role)):
        if name in dict(recipe):
            raise ConfigError(
                f"techniques.{name}: not a technique of harness.fit, whose devices share a model by one of "
                f"{', '.join(allowed)}; python -m harness suite=memory has it"
            )
    if devices > 1 and not any(name in techniques_of_role("PARALLELISM") for name, _ in recipe):
        raise ConfigError(
            f"devices={devices}: none of techniques uses more than one; add one of {', '.join(allowed)}"
        )


def list_of(key: str, text: str) -> list[Any]:
    """Return a list in Hydra's grammar; raises ConfigError."""
    from harness.config.overrides import parse

    (override,) = parse([f"{key}={text}"])
    value = override.value()
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise ConfigError(f"{key}={text}: expected a list, as in {key}=[{text}]")
    return value


def techniques_of_role(role: str) -> list[str]:
    """Return the techniques with a role of `suites.training.step.Role`; reads their modules."""
    from harness.config.protocols import statement
    from harness.config.variants.techniques import built, file_of

    found = {name: statement(file_of(name), "ROLE") for name in built()}
    return [name for name, one in found.items() if one and ast.unparse(one).endswith(f"Role.{role}")]


def variant_of(recipe: Named) -> Variant:
    """Return a recipe as the variant of a run; without techniques it is the baseline, plain PyTorch."""
    from harness.config.variants.optimizations import BASELINE, Variant
    from harness.config.variants.technique_list import KEY, name_of, title_of

    if not recipe:
        return Variant(BASELINE, BASELINE, {}, (), "plain PyTorch")
    return Variant(name_of(recipe), KEY, {}, recipe, title_of(recipe))


class WhatIf(NamedTuple):
    """A change of the recipe: its techniques and its workload, or the reason why it is not tried."""

    title: str
    recipe: Named = ()
    workload: str = ""
    fields: Mapping[str, Any] = {}
    reason: str = ""

    @property
    def variant(self) -> str:
        """Return the name of its variant."""
        return variant_of(self.recipe).name


def what_ifs_of(
    run: Run, recipe: Named, everything: bool, left_out: Collection[str] = ()
) -> Iterator[WhatIf]:
    """Yield the what-ifs of conf/fit.yaml that change this recipe; `everything`: the slow ones, too.

    `left_out`: see `recipe_of`; they are not tried again.
    """
    ((name, fields),) = run.workloads.items()
    other = "several" if fields["dp_size"] == 1 else "one"
    for entry in settings_of_fit()["what_ifs"]:
        if entry.get("devices", "") == other or entry.get("techniques") == [*left_out]:
            continue
        try:
            changed = changed_recipe(recipe, entry)
        except ConfigError as error:
            yield WhatIf(entry["title"], reason=str(error).removeprefix("techniques: "))
            continue
        sizes = {key: max(1, int(fields[key] * times)) for key, times in entry.get("times", {}).items()}
        if changed == recipe and not sizes:
            continue  # the recipe has it
        if entry.get("slow") and not everything:
            yield WhatIf(entry["title"], reason=LATER)
            continue
        workload = ", ".join([name, "changed", *(f"{key}={size}" for key, size in sizes.items())])
        yield WhatIf(entry["title"], changed, workload, {**fields, **sizes, "search": "fits"})


def with_cells(run: Run, recipe: Named, what_ifs: Sequence[WhatIf]) -> Run:
    """Return the run of a recipe and of what-ifs: its first cell is the recipe's."""
    ((name, fields),) = run.workloads.items()
    workloads: dict[str, Mapping[str, Any]] = {name: {**fields, "search": "largest_micro_batch"}}
    first = variant_of(recipe)
    variants = {first.name: replace(first, applies_to=(_sizes(workloads[name]),))}
    for one in what_ifs:
        if one.reason:
            continue
        workloads[one.workload] = one.fields
        variant = variants.get(one.variant, variant_of(one.recipe))
        applies_to = (*variant.applies_to, _sizes(one.fields))
        variants[one.variant] = replace(variant, applies_to=applies_to)
    return replace(run, workloads=workloads, variants=tuple(variants.values()), isolate_if="search")


def _sizes(fields: Mapping[str, Any]) -> Mapping[str, tuple[Any]]:
    """Return the values by which the workloads of a question differ, as an alternative of `applies_to`."""
    return {key: (fields[key],) for key in ("search", "dp_size", "seq_len")}


def changed_recipe(recipe: Named, entry: Mapping[str, Any]) -> Named:
    """Return the recipe with a what-if's techniques; raises ConfigError where they do not combine."""
    from harness.config.variants.technique_list import combination
    from harness.config.variants.techniques import checked_techniques

    merged = {name: dict(settings) for name, settings in recipe if name not in entry.get("without", ())}
    for name, settings in checked_techniques("conf/fit.yaml", list(entry.get("techniques", ()))):
        merged[name] = {**merged.get(name, {}), **settings}
    return combination([{name: settings} for name, settings in merged.items()])
