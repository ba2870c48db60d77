"""The sections `fsdp` and `fsdp_config`, which accelerate, transformers and axolotl share.

Sources: accelerate 1.9.0 and its commit 16cb6eb (utils/dataclasses.py, FullyShardedDataParallelPlugin;
utils/constants.py), transformers 5.23.0 (training_args.py, `_process_fsdp_args`), axolotl commit 067b021
(utils/schemas/fsdp.py).
"""

from __future__ import annotations

from typing import Any

from harness.config.own_files.setup import NotUnderstood, OwnSetup
from harness.config.own_files.table import Fields, Flat, flag_of

STRATEGIES = {
    "full_shard": "full_shard",
    "shard_grad_op": "shard_grad_op",
    "no_shard": "no_shard",
    "hybrid_shard": "hybrid_shard",
    "hybrid_shard_zero2": "hybrid_shard_zero2",
    1: "full_shard",
    2: "shard_grad_op",
    3: "no_shard",
    4: "hybrid_shard",
    5: "hybrid_shard_zero2",
    "1": "full_shard",
    "2": "shard_grad_op",
    "3": "no_shard",
    "4": "hybrid_shard",
    "5": "hybrid_shard_zero2",
}
"""By name or number (accelerate's utils/constants.py, FSDP_SHARDING_STRATEGY)."""


OPTIONS = (
    "full_shard",
    "shard_grad_op",
    "no_shard",
    "hybrid_shard",
    "hybrid_shard_zero2",
    "offload",
    "auto_wrap",
)
"""Words of transformers' `fsdp`."""


def without_prefix(flat: Flat) -> Flat:
    """Return the values with fsdp_config's keys by their names without `fsdp_`, and lists as lists."""
    values: dict[str, Any] = {}
    for key, value in flat.items():
        section, dot, name = key.partition(".")
        if section == "fsdp_config" and dot and name.startswith("fsdp_"):
            key = f"fsdp_config.{name.removeprefix('fsdp_')}"
        elif key.startswith("fsdp_") and not dot and key != "fsdp_config":
            key = f"fsdp_config.{key.removeprefix('fsdp_')}"
        if key in values and values[key] != value:
            raise ValueError(f"{key} is given twice, with {values[key]!r} and {value!r}")
        values[key] = value
    return values


def options_of(value: Any) -> list[str]:
    """Return the words of `fsdp`; raises ValueError with one that transformers does not have."""
    if value is None or value is False or value == "":
        return []
    if value is True:
        return ["full_shard"]
    words = value if isinstance(value, list) else str(value).replace(",", " ").split()
    words = [str(one).lower() for one in words]
    if words in (["true"], ["1"]):
        return ["full_shard"]
    for one in words:
        if one not in OPTIONS:
            raise ValueError(f"fsdp is {value!r}; its words are: {', '.join(OPTIONS)}")
    return words


def section_fields(fields: Fields, default_version: int, unclear: list[NotUnderstood]) -> Fields:
    """Return fields of OwnSetup from the section; empty where the file has none."""
    words = options_of(fields.get("_fsdp"))
    given = [name for name in fields if name.startswith("_fsdp_")]
    if not words and not given:
        return {}
    version = fields.get("_fsdp_version", default_version)
    if version not in (1, 2):
        raise ValueError(f"fsdp_config's version is {version}; it must be 1 or 2")
    strategy = fields.get("_fsdp_strategy") or next((one for one in words if one in STRATEGIES), "full_shard")
    strategy = _with_reshard(fields.get("_fsdp_reshard"), strategy)
    if strategy.startswith("hybrid"):
        unclear.append(
            NotUnderstood(
                "sharding_strategy", strategy, "shards within a node, whose size the file does not give"
            )
        )
    found: Fields = {
        "engine": f"fsdp{version}",
        "zero": {"shard_grad_op": 2, "hybrid_shard_zero2": 2, "no_shard": 0}.get(strategy, 3),
    }
    if strategy == "no_shard":
        found["engine"] = "ddp"
    if "offload" in words or fields.get("_fsdp_offload") or fields.get("_fsdp_offload_"):
        found["offload"] = ("optimizer", "parameters")
    if fields.get("_fsdp_recompute"):
        found["recompute"] = "full"
    if str(fields.get("_fsdp_wrap")).upper() in ("NO_WRAP", "SIZE_BASED_WRAP"):
        unclear.append(NotUnderstood("auto_wrap_policy", fields["_fsdp_wrap"], "units other than layers"))
    return found


def _with_reshard(value: Any, strategy: str) -> str:
    """Return the strategy with FSDP2's reshard_after_forward, which FSDP1 takes as a strategy's name."""
    if value is None:
        return strategy
    if str(value).lower() in STRATEGIES and not isinstance(value, bool):
        return STRATEGIES[str(value).lower()]
    zero2 = {"full_shard": "shard_grad_op", "hybrid_shard": "hybrid_shard_zero2"}
    return (
        strategy if flag_of("fsdp_config's reshard_after_forward", value) else zero2.get(strategy, strategy)
    )


def section_written(setup: OwnSetup, prefix: str = "fsdp_config.") -> dict[str, object]:
    """Return the section's keys of a set-up that FSDP shards."""
    version = 1 if setup.engine == "fsdp1" else 2
    flat: dict[str, object] = {f"{prefix}version": version}
    if version == 2:
        flat[f"{prefix}reshard_after_forward"] = setup.zero == 3
    else:
        flat[f"{prefix}sharding_strategy"] = "FULL_SHARD" if setup.zero == 3 else "SHARD_GRAD_OP"
    flat[f"{prefix}offload_params"] = "parameters" in setup.offload
    flat[f"{prefix}auto_wrap_policy"] = "TRANSFORMER_BASED_WRAP"
    return flat


def refuse_zero1(setup: OwnSetup) -> None:
    """Raise ValueError where FSDP cannot shard so."""
    if setup.engine in ("fsdp1", "fsdp2") and setup.zero not in (2, 3):
        raise ValueError(f"FSDP shards as zero 2 or 3; zero is {setup.zero}: give engine zero or ddp")
    if setup.shard_size is not None and setup.engine != "zero":
        raise ValueError("shard_size has no key of FSDP's sections; replicas has where the format has a mesh")
