"""accelerate's YAML, which `accelerate config` writes and `accelerate launch --config_file` reads.

Sources: accelerate commit 16cb6eb of July 2026 (commands/config/config_args.py, commands/launch.py,
utils/dataclasses.py, parallelism_config.py). Batch, recomputation and model stand in the program that it
starts.
"""

from __future__ import annotations

from harness.frameworks import deepspeed, fsdp_section
from harness.frameworks.table import Fields, Flat, Parts
from harness.frameworks.words import mesh, steps_of
from harness.question import Question

MESH = "parallelism_config.parallelism_config_"


def prepared(flat: Flat) -> Flat:
    """Return the values with FSDP's and the mesh's keys under one name."""
    values = {key.replace(MESH, "parallelism_config.", 1): value for key, value in flat.items()}
    return fsdp_section.without_prefix(values)


def spelled(flat: Flat) -> Flat:
    """Return the values by accelerate's names, which repeat their section."""
    own = {"parallelism_config.": MESH, "fsdp_config.": "fsdp_config.fsdp_"}
    section = {key: next((one for one in own if key.startswith(one)), "") for key in flat}
    return {own.get(section[key], "") + key.removeprefix(section[key]): one for key, one in flat.items()}


def settle(parts: Parts) -> Fields:
    """Return fields of Question."""
    kind = parts["_kind"]
    fields: Fields = {"sharing": "ddp"}
    if kind == "fsdp":
        parts.setdefault("_fsdp_version", 1)
        fields = fsdp_section.section_fields(parts, 1)
    elif kind == "zero":
        section = deepspeed.own_section(parts)
        given = {"zero": "_stage", "_optimizer_on": "_optimizer_on", "_parameters_on": "_parameters_on"}
        section |= {name: parts[part] for name, part in given.items() if part in parts}
        fields = deepspeed.section_fields(section, parts)
    elif kind == "megatron":
        parts.leave_out("distributed_type", "MEGATRON_LM", "give Megatron's own arguments instead")
    fields["compile"] = str(parts.get("_compile", "no")).lower() not in ("no", "none")
    if parts.get("_shard"):
        replicas = parts.get("_replicas") or 1
        fields |= {"dp": parts["_shard"] * replicas, "replicas": replicas if parts["_shard"] > 1 else 1}
    for field in ("micro_batch_size", "recompute", "seq_len"):
        if field not in fields:
            parts.assume(field, "stands in the program that accelerate starts")
    return fields


def parts_of(question: Question) -> Fields:
    """Return accelerate's parts of a question; raises ValueError where it cannot express it."""
    kind = {"fsdp1": "fsdp", "fsdp2": "fsdp", "zero": "zero"}.get(question.sharing, "ddp")
    parts: Fields = {
        "_kind": kind,
        "_compile": "INDUCTOR" if question.compile else None,
        "gradient_accumulation_steps": None,
        **fsdp_section.section_parts(question),
    }
    if kind == "fsdp":
        return parts | {"_fsdp_recompute": question.recompute == "full", **mesh(question)}
    if kind == "zero":
        section = deepspeed.section_parts(question)
        parts |= {name: section[name] for name in ("_optimizer_on", "_parameters_on")}
        parts |= {"_stage": question.zero, "gradient_accumulation_steps": steps_of(question)}
    return parts
