"""The sections `fsdp` and `fsdp_config`, which accelerate, transformers and axolotl share.

Sources: accelerate 1.9.0 and its commit 16cb6eb (utils/dataclasses.py, FullyShardedDataParallelPlugin;
utils/constants.py), transformers 5.23.0 (training_args.py, `_process_fsdp_args`), axolotl commit 067b021
(utils/schemas/fsdp.py, which drops sharding_strategy).
"""

from __future__ import annotations

import re
from typing import Any

from harness.frameworks.table import Fields, Flat, Parts, flag_of, table_of
from harness.question import Question

STRATEGIES = {"full_shard": 3, "shard_grad_op": 2, "no_shard": 0, "hybrid_shard": 3, "hybrid_shard_zero2": 2}
"""What each shards, as ZeRO's stage."""

KEPT = {"full_shard": "shard_grad_op", "hybrid_shard": "hybrid_shard_zero2"}
"""The strategies that keep what they gathered until the backward pass."""

OPTIONS = (*STRATEGIES, "offload", "auto_wrap")
"""Words of transformers' `fsdp`."""

REPEATED = {
    re.compile(r"^fsdp_config\.fsdp_|^fsdp_(?!config$)(?!.*\.)"): "fsdp_config.",
    re.compile(r"^parallelism_config\.parallelism_config_"): "parallelism_config.",
}
"""How accelerate's names repeat their section, and axolotl's older ones stand in for it."""


def with_prefix(key: str) -> str:
    """Return a key by accelerate's name, which repeats its section."""
    mesh = key.replace("parallelism_config.", "parallelism_config.parallelism_config_")
    return mesh.replace("fsdp_config.", "fsdp_config.fsdp_")


def without_prefix(flat: Flat) -> Flat:
    """Return the values with keys of FSDP's and the mesh's sections under one name."""
    values: dict[str, Any] = {}
    for key, value in flat.items():
        for repeated, section in REPEATED.items():
            key = repeated.sub(section, key)
        if key in values and values[key] != value:
            raise ValueError(f"{key} is given twice, with {values[key]!r} and {value!r}")
        values[key] = value
    return values


def options_of(value: Any) -> list[str]:
    """Return the words of `fsdp`; raises ValueError with one that transformers does not have."""
    if value is None or value is False or value == "":
        return []
    words = value if isinstance(value, list) else str(value).replace(",", " ").split()
    words = [str(one).lower() for one in words]
    if words in (["true"], ["1"]):
        return ["full_shard"]
    if not set(words) <= set(OPTIONS):
        raise ValueError(f"fsdp is {value!r}; its words are: {', '.join(OPTIONS)}")
    return words


def section_fields(parts: Parts, default_version: int, of_accelerate: bool = False) -> Fields:
    """Return fields of Question from the section; empty where nothing switches FSDP on.

    `of_accelerate`: its own configuration does, of which version 1 takes sharding_strategy.
    TrainingArguments, which axolotl fills, take the words of `fsdp` or reshard_after_forward instead.
    """
    words = options_of(parts.get("_fsdp"))
    if not (words or of_accelerate):
        return {}
    version = parts.get("_fsdp_version", default_version)
    if version not in (1, 2):
        raise ValueError(f"fsdp_config's version is {version}; it must be 1 or 2")
    strategy = next((one for one in words if one in STRATEGIES), "full_shard")
    if of_accelerate and version == 1:
        strategy = parts.get("_fsdp_strategy", strategy)
    else:
        strategy = _with_reshard(parts.get("_fsdp_reshard"), strategy)
    if strategy.startswith("hybrid"):
        why = "shards within a node, whose size the file does not give; all ranks are taken"
        parts.leave_out("sharding_strategy", strategy, why, "raises")
    zero = STRATEGIES[strategy]
    fields: Fields = {"sharing": f"fsdp{version}" if zero else "ddp", "zero": zero}
    if "offload" in words or parts.get("_fsdp_offload") or parts.get("_fsdp_offload_"):
        fields["offload"] = ("optimizer", "parameters")
    if parts.get("_fsdp_recompute"):
        fields["recompute"] = "full"
    if str(parts.get("_fsdp_wrap")).upper() in ("NO_WRAP", "SIZE_BASED_WRAP"):
        why = "units other than layers"
        parts.leave_out("fsdp_config.auto_wrap_policy", parts["_fsdp_wrap"], why)
    return fields


def _with_reshard(value: Any, strategy: str) -> str:
    """Return the strategy with FSDP2's reshard_after_forward, which FSDP1 takes as a strategy's name."""
    names = table_of("fsdp_section").keys["fsdp_config.sharding_strategy"].values or {}
    word = str(value).lower()
    if word in names and not isinstance(value, bool):
        return str(names[word])
    kept = value is not None and not flag_of("fsdp_config's reshard_after_forward", value)
    return KEPT.get(strategy, strategy) if kept else strategy


def section_parts(question: Question) -> Fields:
    """Return the section's parts of a question; empty where FSDP does not shard. Raises ValueError."""
    if question.shard_size is not None and question.sharing != "zero":
        raise ValueError("shard_size has no key of FSDP's sections; replicas has where the format has a mesh")
    if question.sharing not in ("fsdp1", "fsdp2"):
        return {}
    if question.zero not in (2, 3):
        raise ValueError(f"FSDP shards as zero 2 or 3; zero is {question.zero}: give sharing zero or ddp")
    first, whole = question.sharing == "fsdp1", question.zero == 3
    return {
        "_fsdp_version": 1 if first else 2,
        "_fsdp_strategy": strategy_of(question) if first else None,
        "_fsdp_reshard": None if first else whole,
        "_fsdp_offload": "parameters" in question.offload,
        "_fsdp_wrap": "TRANSFORMER_BASED_WRAP",
    }


def words_of(question: Question) -> str | None:
    """Return transformers' `fsdp` of a question; None where FSDP does not shard."""
    return f"{strategy_of(question)} auto_wrap" if question.sharing in ("fsdp1", "fsdp2") else None


def strategy_of(question: Question) -> str:
    """Return the name of what is sharded, where that is parameters, or all but these."""
    return "full_shard" if question.zero == 3 else "shard_grad_op"
