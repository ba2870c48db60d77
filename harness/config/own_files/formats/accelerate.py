"""accelerate's YAML, which `accelerate config` writes and `accelerate launch --config_file` reads.

Sources: accelerate commit 16cb6eb of July 2026 (commands/config/config_args.py, commands/launch.py,
utils/dataclasses.py, parallelism_config.py). Batch, recomputation and model stand in the program that it
starts.
"""

from __future__ import annotations

from harness.config.own_files.formats import deepspeed, fsdp_section
from harness.config.own_files.setup import NotUnderstood, OwnSetup
from harness.config.own_files.table import Fields, Flat

NAME = "accelerate"
TITLE = "accelerate's YAML"
SOURCE = "accelerate 16cb6eb"


def recognised(flat: Flat) -> int:
    """Return how many keys only accelerate's configuration has."""
    own = {
        "distributed_type",
        "compute_environment",
        "num_machines",
        "main_training_function",
        "machine_rank",
        "num_processes",
        "rdzv_backend",
    }
    return 2 * len(own & flat.keys()) if "distributed_type" in flat or "compute_environment" in flat else 0


def prepared(flat: Flat) -> Flat:
    """Return the values with FSDP's and the mesh's keys under one name."""
    mesh = "parallelism_config.parallelism_config_"
    values = {key.replace(mesh, "parallelism_config.", 1): value for key, value in flat.items()}
    return fsdp_section.without_prefix(values)


def settle(fields: Fields, flat: Flat) -> Fields:
    """Return fields of OwnSetup."""
    unclear: list[NotUnderstood] = []
    found = {name: value for name, value in fields.items() if not name.startswith("_")}
    kind = fields["_kind"]
    if kind == "fsdp":
        found |= fsdp_section.section_fields({"_fsdp_version": 1, **fields}, 1, unclear)
    elif kind == "zero":
        section = deepspeed.own_section(fields)
        for ours, name in (
            ("zero", "_stage"),
            ("_optimizer_on", "_optimizer_on"),
            ("_parameters_on", "_parameters_on"),
        ):
            if name in fields:
                section[ours] = fields[name]
        found |= deepspeed.section_fields(
            {"zero": 2, **section} if "_stage" not in fields and not section else section, unclear
        )
    elif kind == "megatron":
        unclear.append(
            NotUnderstood("distributed_type", "MEGATRON_LM", "give Megatron's own arguments instead")
        )
    if str(fields.get("_compile", "no")).lower() not in ("no", "none"):
        found["compile"] = True
    if fields.get("_shard"):
        replicas = fields.get("_replicas") or 1
        found |= {"dp": fields["_shard"] * replicas, "replicas": replicas if fields["_shard"] > 1 else 1}
    why = "batch, recomputation and model stand in the program that accelerate starts; micro-batch 1 is taken"
    unclear.append(NotUnderstood("per_device_train_batch_size", None, why))
    return {**found, "not_understood": unclear}


def written(setup: OwnSetup) -> Flat:
    """Return accelerate's keys of a set-up; raises ValueError where they cannot express it."""
    for name, value in (("pp", setup.pp), ("ep", setup.ep)):
        if value > 1:
            raise ValueError(f"accelerate's YAML has no key for {name} {value}")
    fsdp_section.refuse_zero1(setup)
    kind = {"fsdp1": "FSDP", "fsdp2": "FSDP", "zero": "DEEPSPEED"}.get(setup.engine, "MULTI_GPU")
    precision = {"fp32": "no"}.get(setup.precision, setup.precision)
    flat: dict[str, object] = {
        "distributed_type": kind,
        "mixed_precision": precision,
        "num_processes": setup.devices,
    }
    if setup.engine in ("fsdp1", "fsdp2"):
        flat |= fsdp_section.section_written(setup, "fsdp_config.fsdp_")
        flat["fsdp_config.fsdp_activation_checkpointing"] = setup.recompute == "full"
        mesh = "parallelism_config.parallelism_config_"
        if setup.dp is not None:
            flat |= {
                f"{mesh}dp_shard_size": setup.dp // setup.replicas,
                f"{mesh}dp_replicate_size": setup.replicas,
            }
        flat |= {f"{mesh}tp_size": setup.tp, f"{mesh}cp_size": setup.cp}
    elif setup.engine == "zero":
        where = {"host": "cpu", "disk": "nvme"}
        on = dict.fromkeys(("optimizer", "parameters"), "none")
        on |= {one.partition(":")[0]: where[one.partition(":")[2] or "host"] for one in setup.offload}
        flat |= {
            "deepspeed_config.zero_stage": setup.zero,
            "deepspeed_config.offload_optimizer_device": on["optimizer"],
            "deepspeed_config.offload_param_device": on["parameters"],
            "deepspeed_config.gradient_accumulation_steps": setup.gradient_accumulation_steps or 1,
        }
    if setup.compile:
        flat["dynamo_config.dynamo_backend"] = "INDUCTOR"
    return flat
