"""accelerate's YAML, which `accelerate config` writes and `accelerate launch --config_file` reads.

Sources: accelerate commit 16cb6eb of July 2026 (commands/config/config_args.py, commands/launch.py,
utils/dataclasses.py, parallelism_config.py). Batch, recomputation and model stand in the program that it
starts.
"""

from __future__ import annotations

from harness.frameworks import deepspeed, fsdp_section
from harness.frameworks.table import Fields, Flat, Parts
from harness.frameworks.words import mesh, mesh_fields, note_compile, steps_of, with_sequence_ranks
from harness.question import Question

prepared = fsdp_section.without_prefix


def spelled(flat: Flat) -> Flat:
    """Return the values by accelerate's names, which repeat their section."""
    return {fsdp_section.with_prefix(key): value for key, value in flat.items()}


def settle(parts: Parts) -> Fields:
    """Return fields of Question."""
    fields: Fields = {"sharing": "ddp"}
    if parts["_kind"] == "fsdp":
        parts.setdefault("_fsdp_version", 1)
        fields = fsdp_section.section_fields(parts, 1, of_accelerate=True)
    elif parts["_kind"] == "zero":
        fields = deepspeed.section_fields(parts, parts["_ds_zero"])
    fields["compile"] = str(parts.get("_compile", "no")).lower() not in ("no", "none")
    note_compile("dynamo_config.dynamo_backend", fields["compile"], fields, parts)
    return with_sequence_ranks(fields | mesh_fields(parts), parts)


def parts_of(question: Question) -> Fields:
    """Return accelerate's parts of a question; raises ValueError where it cannot express it."""
    kind = {"fsdp1": "fsdp", "fsdp2": "fsdp", "zero": "zero"}.get(question.sharing, "ddp")
    parts: Fields = {
        "_kind": kind,
        "_compile": "INDUCTOR" if question.compile else None,
        "gradient_accumulation_steps": steps_of(question) if kind == "zero" else None,
        **fsdp_section.section_parts(question),
    }
    if kind == "fsdp":
        return parts | {"_fsdp_recompute": question.recompute == "full", **mesh(question)}
    if kind == "zero":
        not_its_keys = dict.fromkeys(("_ds_tp", "_ds_mics", "_ds_reduce_bucket"))
        return parts | deepspeed.section_parts(question) | not_its_keys
    return parts
