"""TRL's YAML, and its command lines: `trl sft --…` or `accelerate launch … sft.py --…`.

Sources: TRL commit f2cd577 of July 2026 (trainer/*_config.py, sft_trainer.py, dpo_trainer.py,
grpo_trainer.py, scripts/utils.py, experimental/*). Where no script names the trainer, the file's folder, its
name or its keys do.
"""

from __future__ import annotations

import re

from msgspec.structs import replace

from harness.frameworks import hugging_face, words
from harness.frameworks.table import Fields, Flat, Parts, framework_named, yaml_tree
from harness.question import Question


def recognised(flat: Flat) -> int:
    """Return how many keys its files have where one is TRL's alone; dataset_name may be that one."""
    names = {key.replace("-", "_") for key in flat}
    trl, others = (framework_named(name).counted(flat) for name in ("trl", "hugging_face"))
    if "dataset_name" in names and others and not names & {*yaml_tree("trl")["of_scripts"].split()}:
        trl += 1
    return others + trl if trl else 0


def prepared(flat: Flat) -> Flat:
    """Return the values by present names."""
    flat = {key.replace("-", "_"): value for key, value in flat.items()}
    if "bf16" not in flat and str(flat.get("fp16")).lower() == "true":
        flat["bf16"] = False
    older = flat.keys() & {*yaml_tree("trl")["older"].split()}
    return hugging_face.prepared({**flat, "trl.older": True} if older else flat)


def trainer_of(parts: Parts) -> str:
    """Return the trainer by the script's name, by the file's, or by its keys."""
    known = yaml_tree("trainer")["methods"]
    for name in (str(parts.get("_trainer") or ""), f"{parts.folder}/{parts.name}"):
        parts_of_name = re.split(r"[/._-]+", name.replace("online_dpo", "online").replace("nash_md", "nash"))
        if found := [word for word in parts_of_name if word in known]:
            return found[-1]
    own = yaml_tree("trl")["keys_of"]
    return next((name for name, keys in own.items() if parts.flat.keys() & {*keys.split()}), "sft")


def settle(parts: Parts) -> Fields:
    """Return fields of Question."""
    trainer = trainer_of(parts)
    method = yaml_tree("trainer")["methods"][trainer]
    online = bool(method.get("online"))
    if not parts["_peft"] and (parts["_4bit"] or parts["_8bit"]):
        raise ValueError("load_in_4bit or load_in_8bit without use_peft: quantized weights cannot be trained")
    fields = hugging_face.settle(parts)
    parts.assumed.pop("adapters", None)  # TRL's own defaults
    if adapters := fields.get("adapters"):
        quantized, word = adapters.base != "bf16", str(parts["_dtype"])
        if not quantized and word == "float32":
            parts.leave_out("dtype", word, "of the frozen weights; bf16 is taken", "raises", "raises")
        narrow = quantized or (word != "float32" and (fields["sharing"], fields.get("zero")) == ("zero", 3))
        fields["adapters"] = replace(adapters, dtype="bf16" if narrow else "fp32")
    beta = parts.get("_beta")
    with_reference = str(beta) not in ("None", "0", "0.0") if online else not parts["_precomputed"]
    hugging_face.with_method(parts, fields, trainer, "trl.trainer", with_reference)
    if "trl.trainer" not in parts.flat and trainer != "sft":
        parts.assume("micro_batch_size", f"{trainer}'s, by the file's name or keys")
    if parts["_activations"] and fields["recompute"] == "none":
        fields["offload"] = (*fields.get("offload", ()), "activations")
    elif parts["_activations"]:
        parts.leave_out("activation_offloading", True, "what is kept goes to the host", "lowers", "raises")
    packed = trainer == "sft" and words.is_on(parts.flat.get("packing"))
    fields["shorter"] = not packed and fields["rollout"] == "none"
    loss = str(parts.get("_loss") or ("nll" if parts.get("_older") else "chunked_nll"))
    of_trl = trainer != "sft" and bool(parts.get("_liger"))  # losses of Liger that ask for no model type
    fields["fused_loss"] = fields["fused_loss"] or of_trl or (trainer == "sft" and loss == "chunked_nll")
    if online:
        if "prompt" in method:
            parts.setdefault("_prompt", method["prompt"])
        if "completion" in method and "max_completion_length" not in parts.flat:
            parts["_completion"] = method["completion"]
        hugging_face.with_prompt(parts, fields)
        if beta is None and parts.get("_older"):
            why = "versions before 0.19 keep a reference model where beta is not given"
            parts.leave_out("beta", None, why, "raises", "raises")
    elif parts.flat.get("max_length", 0) is None or ("length" in method and "max_length" not in parts.flat):
        fields["seq_len"] = None
    return fields


def parts_of(question: Question) -> Fields:
    """Return TRL's parts of a question; raises ValueError where it cannot express it."""
    kept = tuple(one for one in question.offload if one != "activations")
    return hugging_face.parts_of(replace(question, offload=kept)) | {
        "_dtype": "bfloat16" if question.states == "bf16" or question.adapters else None,
        "_liger": question.fused_layers,
        "_peft": question.adapters is not None,
        "_loss": "chunked_nll" if question.fused_loss else "nll",
    }
