"""Words that several frameworks share, in ours."""

from __future__ import annotations

from collections.abc import Mapping

from harness.config.own_files.setup import NotUnderstood, OwnSetup

DTYPES: Mapping[str, str] = {
    "bfloat16": "bf16",
    "bf16": "bf16",
    "float16": "fp16",
    "fp16": "fp16",
    "float32": "fp32",
    "fp32": "fp32",
}

OPTIMIZERS: Mapping[str, str] = {
    "adam": "adamw",
    "adamw": "adamw",
    "fusedadam": "adamw",
    "adamw_torch": "adamw",
    "adamw_torch_fused": "adamw",
    "adamw_hf": "adamw",
    "adamw_apex_fused": "adamw",
    "adamw_bnb_8bit": "adamw_8bit",
    "adamw_8bit": "adamw_8bit",
    "adam8bit": "adamw_8bit",
    "adamw8bit": "adamw_8bit",
    "adamw_torch_8bit": "adamw_8bit",
    "ao_adamw_8bit": "adamw_8bit",
    "pagedadamw8bit": "paged_adamw_8bit",
    "paged_adamw_8bit": "paged_adamw_8bit",
    "adafactor": "adafactor",
    "muon": "muon",
    "decoupled_adamw": "adamw",
    "sgd": "sgd_momentum",
}
"""Names of optimizers whose states are ours, in lower case; Adam and AdamW keep the same bytes."""


PAGED: Mapping[str, str] = {"paged_adamw_32bit": "adamw", "paged_adamw": "adamw", "pagedadamw": "adamw"}
"""bitsandbytes' optimizers with states in managed memory."""


def optimizer_of(key: str, name: str, unclear: list[NotUnderstood]) -> str:
    """Return an optimizer in our word; one that is not modelled keeps its name and is added to `unclear`."""
    word = name.lower().replace("-", "_").removeprefix("torch.optim.").split(".")[-1]
    for known in (word, word.replace("_", "")):
        if known in OPTIMIZERS:
            return OPTIMIZERS[known]
    if word in PAGED:
        unclear.append(NotUnderstood(key, name, "states that move to the host where the device is full"))
        return PAGED[word]
    unclear.append(NotUnderstood(key, name, "an optimizer whose states are not modelled"))
    return word


ATTENTIONS: Mapping[str, str] = {
    "eager": "explicit",
    "sdpa": "flash",
    "flash_attention_2": "flash",
    "flash_attention_3": "flash",
    "flex_attention": "flash",
    "xformers": "flash",
}
"""transformers' names of attention: which keep a score matrix."""


def implementation_of(name: str) -> str:
    """Return torch's implementation by transformers' name of an optimizer (5.23.0, trainer_optimizer.py)."""
    return "foreach" if name == "adamw_torch" else "fused"


def optimizer_written(setup: OwnSetup) -> str:
    """Return transformers' name of a set-up's optimizer."""
    if setup.optimizer == "adamw":
        return "adamw_torch" if setup.optimizer_impl == "foreach" else "adamw_torch_fused"
    return {"adamw_8bit": "adamw_bnb_8bit"}.get(setup.optimizer, setup.optimizer)


EVERY_LAYER = {"all", "all-linear", "all_linear", "linear"}


def targets_of(modules: object) -> tuple[str, ...]:
    """Return the names of the layers with adapters; () for every linear layer, or where none is given."""
    if isinstance(modules, str):
        modules = modules.replace(",", " ").split()
    names = [str(one).split(".")[-1] for one in modules] if isinstance(modules, list | tuple) else []
    return () if EVERY_LAYER & set(names) else tuple(sorted(set(names)))


def attention_of(key: str, name: str, unclear: list[NotUnderstood]) -> str:
    """Return attention in our word; kernels named by a repository are taken as flash attention."""
    if name in ATTENTIONS:
        return ATTENTIONS[name]
    if "flash" in name:
        return "flash"
    unclear.append(NotUnderstood(key, name, "an attention that is not modelled; flash is taken"))
    return "flash"
