"""DeepSpeed's ds_config.json, also where another framework's file contains or names one.

Sources: deepspeed 0.19.8 (runtime/constants.py, runtime/zero/config.py, runtime/zero/offload_config.py,
runtime/tensor_parallel/config.py, runtime/activation_checkpointing/config.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from harness.config.own_files.formats.words import optimizer_of
from harness.config.own_files.setup import NotUnderstood, OwnSetup
from harness.config.own_files.table import Fields, Flat

NAME = "deepspeed"
TITLE = "DeepSpeed's ds_config.json"
SOURCE = "deepspeed 0.19.8"


def recognised(flat: Flat) -> int:
    """Return how many keys only DeepSpeed has."""
    own = {
        "train_micro_batch_size_per_gpu",
        "zero_allow_untested_optimizer",
        "wall_clock_breakdown",
        "bf16.enabled",
        "fp16.enabled",
        "steps_per_print",
    }
    return len(own & flat.keys()) + sum(key.startswith("zero_optimization.") for key in flat)


def prepared(flat: Flat) -> Flat:
    """Return the values as they are."""
    return flat


def settle(fields: Fields, flat: Flat) -> Fields:
    """Return fields of OwnSetup; recomputation and the sequence's length stand in the program."""
    unclear: list[NotUnderstood] = []
    found = {name: value for name, value in fields.items() if not name.startswith("_")}
    found |= section_fields(fields, unclear)
    if fields["_fp16"] and fields["_bf16"]:
        raise ValueError("bf16.enabled and fp16.enabled are both true; DeepSpeed takes one of them")
    found["precision"] = "bf16" if fields["_bf16"] else "fp16" if fields["_fp16"] else "fp32"
    if fields["_autocast"]:
        found["precision"] = (
            "fp16" if "16" in str(fields.get("_autocast_dtype")).replace("bf", "") else "bf16"
        )
    batch = {name: found.get(name) for name in BATCH}
    dp = None
    if all(batch.values()):
        at_once = found["micro_batch_size"] * found["gradient_accumulation_steps"]
        if found["global_batch_size"] % at_once:
            raise ValueError(
                f"train_batch_size {found['global_batch_size']} is no multiple of "
                f"train_micro_batch_size_per_gpu {found['micro_batch_size']} × "
                f"gradient_accumulation_steps {found['gradient_accumulation_steps']}"
            )
        dp = found["global_batch_size"] // at_once
    elif not batch["gradient_accumulation_steps"] and not batch["global_batch_size"]:
        found["gradient_accumulation_steps"] = 1
    if "auto" in (flat.get("bf16.enabled"), flat.get("fp16.enabled")) and found["precision"] == "fp32":
        found["precision"] = "bf16"
        unclear.append(NotUnderstood("bf16.enabled", "auto", "left to the program; bf16 is taken"))
    if found.get("micro_batch_size") is None:
        unclear.append(
            NotUnderstood("train_micro_batch_size_per_gpu", None, "left to the program; 1 is taken")
        )
    return {**found, "dp": dp, "not_understood": unclear}


BATCH = ("global_batch_size", "micro_batch_size", "gradient_accumulation_steps")


def section_fields(fields: Mapping[str, object], unclear: list[NotUnderstood]) -> Fields:
    """Return what a DeepSpeed configuration says besides batch and precision."""
    found: Fields = {"engine": "zero", "zero": fields["zero"]}
    on = {"optimizer": fields.get("_optimizer_on"), "parameters": fields.get("_parameters_on")}
    if fields.get("_old_offload"):
        on["optimizer"] = on["optimizer"] or "host"
    if fields.get("_old_offload_param"):
        on["parameters"] = on["parameters"] or "host"
    found["offload"] = tuple(
        sorted(name if where == "host" else f"{name}:{where}" for name, where in on.items() if where)
    )
    if on["parameters"] and found["zero"] != 3:
        raise ValueError("zero_optimization.offload_param needs stage 3")
    if on["optimizer"] and not found["zero"]:
        raise ValueError("zero_optimization.offload_optimizer needs stage 1, 2 or 3")
    if fields.get("_optimizer"):
        found["optimizer"] = optimizer_of("optimizer.type", str(fields["_optimizer"]), unclear)
    tp, mics = int(str(fields.get("_tp") or 0)), int(str(fields.get("_mics") or 0))
    found["tp"] = max(1, tp)
    if mics > 0:
        found["shard_size"] = mics
    if not found["zero"]:
        found["engine"] = "ddp"
    return found


def own_section(fields: Fields) -> Fields:
    """Return the fields of a contained ds_config, by the names that `section_fields` takes."""
    public = {"zero", "compile", *BATCH}
    inner = {name.removeprefix("_ds_"): value for name, value in fields.items() if name.startswith("_ds_")}
    return {name if name in public else f"_{name}": value for name, value in inner.items()}


def written(setup: OwnSetup) -> Flat:
    """Return DeepSpeed's keys of a set-up; raises ValueError where it cannot express it."""
    for name, value in (("pp", setup.pp), ("cp", setup.cp), ("ep", setup.ep)):
        if value > 1:
            raise ValueError(f"ds_config.json has no key for {name} {value}; the program sets it")
    if setup.precision not in ("bf16", "fp16", "fp32"):
        raise ValueError(f"ds_config.json has no key for precision {setup.precision}")
    return section_written(setup) | {
        "train_micro_batch_size_per_gpu": setup.micro_batch_size,
        **({"train_batch_size": setup.global_batch_size} if setup.global_batch_size else {}),
        **(
            {"gradient_accumulation_steps": setup.gradient_accumulation_steps}
            if setup.gradient_accumulation_steps
            else {}
        ),
        "bf16.enabled": setup.precision == "bf16",
        "fp16.enabled": setup.precision == "fp16",
        "optimizer.type": {"adamw": "AdamW", "muon": "Muon"}.get(setup.optimizer, setup.optimizer),
        **({"compile.deepcompile": True} if setup.compile else {}),
    }


def section_written(setup: OwnSetup) -> dict[str, object]:
    """Return the keys of sharding and offload."""
    flat: dict[str, object] = {"zero_optimization.stage": setup.zero}
    devices = {"host": "cpu", "disk": "nvme"}
    for one in setup.offload:
        what, _, where = one.partition(":")
        if what == "activations":
            raise ValueError("ds_config.json has no key for activations on the host; the program sets it")
        name = {"optimizer": "offload_optimizer", "parameters": "offload_param"}[what]
        flat[f"zero_optimization.{name}.device"] = devices[where or "host"]
    if setup.tp > 1:
        flat["tensor_parallel.autotp_size"] = setup.tp
    if setup.shard_size:
        flat["zero_optimization.mics_shard_size"] = setup.shard_size
    return flat
