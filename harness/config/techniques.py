"""Checks the techniques that an optimization's YAML or a command's `techniques=[...]` lists.

They are declared in suites/training/declared.py; the code of one is its module in
suites/training/techniques, which needs torch. A word that people use for a technique is answered with the
entry that means it.

A list names each technique by `name`, by `name.value`, or by `{name: {setting: value}}`. The value of
`name.value` is that of the only setting which lists it among its choices, or of the first setting. A
command's list is one more variant, which combines them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from importlib import import_module
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import yaml

from harness.config.code_fingerprint import ROOT, module_of
from harness.config.protocols import Function, refuse_incomplete
from harness.config.validation import (
    ConfigError,
    DeclaredTechnique,
    Fields,
    check_fields,
    check_relations,
    fields_of,
    shown,
    unknown,
)

IN_LISTS: Mapping[str, str] = {
    **dict.fromkeys(("amp", "autocast"), "mixed_precision"),
    "bf16": "mixed_precision (fp32 weights) or bf16_states (everything in bf16)",
    "fp16": "mixed_precision, in bf16, whose tensors have the sizes of fp16",
    "fp8": "float8",
    "pure_bf16": "bf16_states",
    "qlora": "lora: {base: nf4}",
    "dora": "lora: {dora: true}",
    "deepspeed": "zero: {stage: 3}, or stage 1 or 2",
    "zero1": "zero: {stage: 1}",
    "zero2": "zero: {stage: 2}",
    "zero3": "zero: {stage: 3}",
    "zero_offload": "zero: {stage: 2, optimizer: host}",
    "zero_infinity": "zero: {stage: 3, optimizer: disk, parameters: disk}",
    "fsdp": "fsdp2, or fsdp1 for FullyShardedDataParallel",
    "hsdp": "fsdp1 or fsdp2, whose settings have hybrid sharding",
    "dp": "ddp",
    "cpu_offload": "fsdp2: {cpu_offload: true}",
    "offload": "fsdp2: {cpu_offload: true}, or activation_offload",
    **dict.fromkeys(("checkpointing", "gradient_checkpointing", "recompute"), "activation_checkpointing"),
    **dict.fromkeys(("flash", "flash_attention", "flash_attention_2", "flash_attn", "sdpa"), "attention"),
    **dict.fromkeys(("liger", "fused_cross_entropy"), "loss: {fused: true}"),
    "chunked_loss": "loss: {chunks: 8}",
    "grad_accum": "gradient_accumulation",
    "torch_compile": "compile",
    **dict.fromkeys(("adam_8bit", "adamw_8bit"), "optimizer: {name: adamw_8bit}"),
    "tp": "tensor_parallel",
    "pp": "pipeline",
    "cp": "context_parallel",
    "ep": "expert_parallel",
    "diloco": "local_sgd",
}
"""A word, in any case and with `-` or `_`, to the entry of `techniques=[...]` that means it."""


TECHNIQUE = {
    "apply": Function(("step", "settings")),
    "contract": Function(("settings",), required=False),
    "applies_to": Function(("workload", "settings"), required=False),
    "unavailable": Function((), required=False),
}
"""The functions of a technique."""

SEE = "docs/extend/adding-a-technique.md lists what a technique has"

Named = tuple[tuple[str, Mapping[str, Any]], ...]  # (name, settings) of each technique of a list


def declared() -> Mapping[str, DeclaredTechnique]:
    """Return the techniques by name."""
    found: Mapping[str, DeclaredTechnique] = import_module("suites.training.declared").TECHNIQUES
    return found


def checked_techniques(where: str, given: Any) -> Named:
    """Return (name, settings) of each technique listed; raises ConfigError."""
    if not isinstance(given, list):
        raise ConfigError(f"{where}={given!r}: expected a list of names, or of {{name: {{setting: value}}}}")
    techniques = []
    for one in given:
        name, settings = _named(where, one)
        name, _, value = name.partition(".")
        if name not in declared():
            plain = name.lower().replace("-", "_")
            if meant := IN_LISTS.get(plain) or IN_LISTS.get(plain.replace("_", "")):
                raise ConfigError(f"{where}.{name}: no such name; write {meant}")
            raise unknown(f"{where}.{name}", name, declared())
        allowed = settings_of(name)
        if value:
            settings = {**settings, **_setting(f"{where}.{name}", value, allowed)}
        whole = check_fields(f"{where}.{name}", settings, allowed)
        check_relations(f"{where}.{name}", whole, allowed)
        techniques.append((name, {key: whole[key] for key in settings}))
    return tuple(techniques)


def _setting(where: str, text: str, allowed: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return {setting: value} of `name.text`; raises ConfigError."""
    if not allowed:
        raise ConfigError(f"{where}.{text}: this technique has no settings")
    every = [(key, value) for key, field in allowed.items() for value in field.get("one_of", ())]
    choices = [(key, value) for key, value in every if str(value) == text]
    name = where.rpartition(".")[2]
    if len(choices) > 1:
        ways = " or ".join(f"{{{name}: {{{key}: {text}}}}}" for key, _ in choices)
        raise ConfigError(f"{where}.{text}: several settings have this value; write {ways}")
    if choices:
        return dict(choices)
    if text in allowed:
        value = "true" if allowed[text].get("type") == "bool" else "VALUE"
        raise ConfigError(f"{where}.{text}: is a setting; write {{{name}: {{{text}: {value}}}}}")
    first, field = next(iter(allowed.items()))
    if "one_of" in field:
        raise unknown(f"{where}.{text}", text, {str(value) for _, value in every})
    try:
        return {first: yaml.safe_load(text)}
    except yaml.YAMLError:
        return {first: text}


def _named(where: str, one: Any) -> tuple[str, Mapping[str, Any]]:
    if isinstance(one, str):
        return one, {}
    if isinstance(one, Mapping) and len(one) == 1:
        ((name, settings),) = one.items()
        if settings is None or isinstance(settings, Mapping):
            return str(name), settings or {}
    raise ConfigError(f"{where}: {one!r}; expected a name, or {{name: {{setting: value}}}}")


def check_functions(name: str) -> None:
    """Import a technique; raise ConfigError, one line, where it lacks a function."""
    refuse_incomplete(import_module(module_of(file_of(name))), TECHNIQUE, SEE)


def names() -> list[str]:
    """Return the names of all techniques."""
    return sorted(declared())


def file_of(name: str) -> Path:
    """Return the module of a technique."""
    return ROOT / "suites" / "training" / "techniques" / f"{name}.py"


@cache
def settings_of(name: str) -> Fields:
    """Return each setting of a technique with its default and what it allows; raises ConfigError."""
    return fields_of(declared()[name].settings, any_type=True)


KEY = "techniques"
"""The key of the command line, and the module that its variant has in place of an optimization's."""


def combination(given: Any) -> Named:
    """Return (name, settings) of each technique of a command, by name: their order has no meaning.

    Raises ConfigError where `checked_techniques` does, where one is listed twice, where two of them do
    not combine. What one needs may come from a workload, so that is left to the cells.
    """
    techniques = sorted(checked_techniques(KEY, given), key=lambda pair: pair[0])
    for (one, _), (other, _) in pairwise(techniques):
        if one == other:
            raise ConfigError(f"{KEY}: {one} is listed twice; write {{{one}: {{setting: value}}}} once")
    refuse_conflicts(KEY, techniques)
    return tuple(techniques)


def refuse_conflicts(where: str, techniques: Iterable[tuple[str, Any]]) -> None:
    """Raise ConfigError where two techniques of a list do not combine."""
    for (one, _), (other, _) in combinations(techniques, 2):
        if one != other and (reason := _conflict(one, other) or _conflict(other, one)):
            raise ConfigError(f"{where}: {reason}")


def name_of(techniques: Named) -> str:
    """Return the name of a list's variant: `techniques.activation_checkpointing(mode=full)+fsdp2`."""
    return f"{KEY}.{'+'.join(name + _settings(values, '({})') for name, values in techniques)}"


def title_of(techniques: Named) -> str:
    """Return the title of a list's variant: `activation checkpointing (mode=full) + fsdp2`."""
    return " + ".join(name.replace("_", " ") + _settings(values, " ({})") for name, values in techniques)


def _settings(values: Mapping[str, Any], form: str) -> str:
    words = ",".join(
        f"{key}={value if isinstance(value, str) else shown(value)}" for key, value in values.items()
    )
    return form.format(words) if words else ""


def _conflict(one: str, other: str) -> str:
    """Return why `one` does not allow `other`; "" where it does."""
    role, reasons = declared()[one].role, declared()[one].excludes
    if role is not None and role == declared()[other].role:
        return f"{one} and {other} both decide {role}; choose one of them"
    return f"{one} does not combine with {other}: {reasons[other]}" if other in reasons else ""
