"""axolotl's YAML.

Sources: axolotl commit 067b021 of July 2026 (utils/schemas/config.py, training.py, peft.py, fsdp.py,
enums.py, integrations/liger/args.py, cut_cross_entropy/args.py, expert_parallel/args.py; of what is loaded
and sharded loaders/model.py and monkeypatch/accelerate/fsdp2.py, moe_quant.py, models/llama4/modeling.py).
"""

from __future__ import annotations

import re

import msgspec

from harness.config.hf_config import TOWERS
from harness.frameworks import deepspeed, fsdp_section, hugging_face, words
from harness.frameworks.models import is_mixture, published_model
from harness.frameworks.table import LEFT, Fields, Flat, Parts, is_off, yaml_tree
from harness.question import Adapters, KeyRead, Question

SWITCHES = {
    "_fp8": ("fp8", "fp32"),
    "_bf16": ("bf16", "fp32"),
    "_fp16": ("fp16", "fp32"),
    "_bfloat16": ("bf16", "bf16"),
    "_float16": ("fp16", "bf16"),
}
"""The precision of matmuls and of states by switch; the first that is on counts."""


AS_LOADED = ("ddp", "fsdp2")
"""Sharing under which weights are trained in the type in which they are loaded: axolotl's own
fsdp2_prepare_model does not upcast them as accelerate's does (monkeypatch/accelerate/fsdp2.py)."""

LIGER = "axolotl.integrations.liger.LigerPlugin"
"""The plugin without which keys of Liger do nothing; CutCrossEntropyPlugin switches its own on."""

LIGER_KINDS = " ".join(yaml_tree("words")["liger"][who] for who in ("trainer", "axolotl")).split()
"""Model types for whose layers it has kernels (integrations/liger/plugin.py)."""

GEMMA_4 = re.compile(r"(?i)gemma-?4")
"""In names of models whose checkpoints are never re-entrant."""

PADDED = KeyRead(
    key="sample_packing",
    value=False,
    status=LEFT,
    means="sequences are padded to the longest of their micro-batch, sequence_len at most",
    memory="lowers",
    to_states=True,
    seconds="lowers",
    source="axolotl 067b021, core/builders",
)


prepared = fsdp_section.without_prefix


def spelled(flat: Flat) -> Flat:
    """Return the values by axolotl's names."""
    return {("fsdp_version" if key == "fsdp_config.version" else key): value for key, value in flat.items()}


def settle(parts: Parts) -> Fields:
    """Return fields of Question; raises ValueError for a run on no device of its own."""
    plugins = str(parts.get("_plugins") or "")
    if "hatchery" in plugins.lower():  # integrations/hatchery/plugin.py: a stub in place of the model
        raise ValueError("plugins has Hatchery: a remote service trains, and no device of the run")
    if any(name.startswith("_fsdp_") for name in parts):
        parts.setdefault("_fsdp", True)  # core/builders/base.py: fsdp_config alone switches it on
    fields: Fields = {"sharing": "ddp", "recompute": "none", **fsdp_section.section_fields(parts, 1)}
    if parts.get("_batch"):
        fields["gradient_accumulation_steps"] = max(1, parts["_batch"] // parts["micro_batch_size"])
    if deepspeed.is_contained(parts):
        fields |= deepspeed.section_fields(parts, parts["_ds_zero"])
        fields["tp"] = max(parts["tp"], fields["tp"])
    fields |= _mesh(parts, fields)
    fields["optimizer"] = parts["optimizer"]
    fields["optimizer_impl"] = words.implementation_of(parts.flat.get("optimizer"))
    if parts["_recompute"]:
        fields["recompute"] = "full"
    fields["reentrant"] = _is_reentrant(parts)
    if parts["_recompute"] in ("offload", "disk") or parts["_activations"]:
        fields["offload"] = tuple(sorted({*fields.get("offload", ()), "activations"}))
    usual = "fp32" if parts.get("_bf16") is False else "bf16"
    on = next((kinds for switch, kinds in SWITCHES.items() if parts.get(switch)), (usual, "fp32"))
    fields["precision"], fields["states"] = on
    if fields["sharing"] in AS_LOADED and not parts.get("_adapter") and fields["precision"] != "fp32":
        fields["states"] = "fp32" if parts.get("_random") else "bf16"  # as they are loaded: no fp32 masters
    fields["attention"] = "explicit" if parts.get("_eager") else "flash"  # transformers takes sdpa by itself
    if parts.get("_attention"):
        fields["attention"] = words.attention_of("attn_implementation", parts["_attention"], parts)
    fields["adapters"] = _adapters(parts, fields)
    if _has_kernels(parts, fields["sharing"]):
        means = "fused kernels of adapters, which keep less and are on where no key says otherwise"
        parts.leave_out("lora_mlp_kernel", True, means, "lowers", "lowers")
    _with_method(parts, fields)
    cut = "CutCrossEntropy" in plugins and parts.get("_cut") is not False
    upcast = fields["states"] == "bf16" and fields["sharing"] != "fsdp2" and not parts.get("_bfloat16")
    if upcast and not (cut or _casts(parts)):  # loaders/model.py, _configure_embedding_dtypes
        means = "the embedding, the output layer and norms stay in fp32 without a flash kernel"
        parts.leave_out("attn_implementation", parts.get("_attention"), means, "raises", "none")
    padded = parts.get("_padding", bool(parts.get("_reward")))
    if parts.get("_packing"):
        _name_packing(parts)
    if not (padded or parts.get("_packing") or parts.get("_pretraining")):
        parts.left_out.append(PADDED)
        fields["shorter"] = fields.get("rollout", "none") == "none"
    has_kernels = _kind(parts) in (None, *LIGER_KINDS)
    loss, *layers = (LIGER in plugins and bool(parts.get(one)) for one in ("_liger", "_norms", "_gates"))
    fields["fused_loss"] = cut or loss
    fields["fused_layers"] = has_kernels and all(layers)
    if any(layers) and not has_kernels:  # integrations/liger/plugin.py: the loss alone has a generic one
        why = f"there are no kernels of Liger for layers of {_kind(parts)}"
        parts.leave_out("liger_rms_norm", parts.get("_norms"), why, "none", "none")
    elif any(layers) and not all(layers):
        parts.leave_out(
            "liger", None, "Liger's norms or gated activations, one without the other", "lowers", "lowers"
        )
    return fields


def _kind(parts: Parts) -> str | None:
    """Return the model's type, None where it is not known or more than text."""
    shape = published_model(parts.get("model_name", ""))
    return shape.config["model_type"] if shape and not {*TOWERS} & shape.config.keys() else None


def _is_reentrant(parts: Parts) -> bool:
    """Return whether checkpoints are torch's older ones.

    (utils/config/__init__.py, normalize_config; monkeypatch/selective_checkpointing.py)
    """
    sections = {key.partition(".")[0] for key, value in parts.flat.items() if not is_off(value)}
    kind = _kind(parts) or str(parts.get("model_name"))
    if "selective_checkpointing" in sections or GEMMA_4.search(kind):
        return False
    own = "gradient_checkpointing_kwargs" in {key.partition(".")[0] for key in parts.flat}
    usual = parts["_recompute"] and not (own or parts.get("_rl") or "unfrozen_parameters" in sections)
    return bool(parts.get("_reentrant", usual))


def _has_kernels(parts: Parts, sharing: str) -> bool:
    """Return whether axolotl switches its kernels of LoRA on by itself.

    (utils/schemas/config.py, check_auto_enable_lora_kernels; model_support/paddleocr_vl)
    """
    flat, name = parts.flat, parts.get("_adapter")
    if any(flat.get(f"lora_{one}_kernel") is not None for one in ("mlp", "qkv", "o", "embedding")):
        return False
    excluded = parts.get("_rl") or (parts["_8bit"] and name == "lora") or sharing == "fsdp1"
    excluded = excluded or "paddleocr" in str(flat.get("base_model")).lower()
    switches = (flat.get("nvfp4_merge_aware"), flat.get("trust_remote_code"))
    return name in ("lora", "qlora") and not (excluded or any(words.is_on(one) for one in switches))


def _name_packing(parts: Parts) -> None:
    """Name how attention keeps packed sequences apart, which no kernel does that axolotl does not know.

    (utils/schemas/config.py, attn_decontaminates_packing)
    """
    by_mask = parts.get("_attention") == "sdpa" or parts.get("_sdpa")  # one of eager attention is its own
    if by_mask and not words.is_on(parts.flat.get("sdpa_varlen")):
        words.name_mask("sample_packing", 1, parts)
    elif by_mask or _casts(parts):
        words.name_documents("sample_packing", parts)


def _casts(parts: Parts) -> bool:
    """Return whether a kernel is asked for that needs every module in 16 bits."""
    named = parts.get("_attention") not in (None, "eager", "sdpa")
    return named or any(parts.get(name) for name in ("_flash", "_flex", "_xformers"))


def _with_method(parts: Parts, fields: Fields) -> None:
    """Set what `rl` or a reward model trains on."""
    head = next((one for one in ("reward", "process_reward") if parts.get(f"_{one}")), "")
    name, key = (head, f"{head}_model") if head else (str(parts.get("_rl") or "").lower(), "rl")
    methods = yaml_tree("axolotl")["methods"]
    if not name:
        return
    if name not in methods:
        raise ValueError(f"rl is {name!r}; known: {', '.join(methods)}")
    if name == "ebft" and parts.flat.get("ebft.mode") == "strided":
        raise ValueError(
            "ebft.mode is strided, whose micro-batches are not the file's: n_samples_per_prompt copies of "
            "each document, with generated blocks after it"
        )
    generated = name in ("grpo", "gdpo", "ebft")
    own = parts.flat.get("trl.beta")  # TRL's is 0 where none is given
    beta = parts.flat.get("rl_beta") if own is None else own
    with_reference = not is_off(beta) if generated else not parts.get("_precomputed")
    hugging_face.with_method(parts, fields, name, key, with_reference, "axolotl")
    own = generated or name == "kto"  # TRL loads the reference again, in fp32 (trainer/utils.py)
    if own and fields.get("reference_weight_B") and fields["sharing"] != "zero":
        fields["reference_weight_B"] = 4
    if name in ("dpo", "ipo") and not (with_reference or fields.get("adapters")):
        fields["reference_weight_B"] = 2  # train.py, setup_reference_model: given to TRL, which then keeps it
    if generated and parts.get("_completion"):
        hugging_face.with_prompt(parts, fields, "max_prompt_len")  # which is None by default


def _mesh(parts: Parts, fields: Fields) -> Fields:
    """Return data-parallel ranks where the file gives its mesh (dp_shard × dp_replicate × tp × cp)."""
    if "_shard" not in parts:
        return {"replicas": parts.get("_replicas") or 1}
    if parts["_shard"] > 1 and not fields.get("zero"):
        raise ValueError("dp_shard_size is given without fsdp_config; give fsdp_version and fsdp_config")
    mesh = words.mesh_fields(parts)
    return mesh | {"dp": mesh["dp"] * parts["ep"]}


def _adapters(parts: Parts, fields: Fields) -> Adapters | None:
    name, bits = parts.get("_adapter"), parts["_4bit"] or parts["_8bit"]
    if not name:
        if bits:
            raise ValueError(
                "load_in_4bit or load_in_8bit without adapter: quantized weights cannot be trained"
            )
        return None
    if name not in ("lora", "qlora", "dora"):
        parts.leave_out("adapter", name, "adapters other than LoRA; LoRA's bytes are taken")
    if "_rank" not in parts:
        raise ValueError(f"adapter is {name}, but lora_r is missing")
    model = parts.get("model_name", "")
    base = "int8" if parts["_8bit"] else "nf4" if parts["_4bit"] or name == "qlora" else "bf16"
    # loaders/model.py, _prepare_model_for_quantization: peft's, which casts to fp32 what is in 16 bits
    widened = bits and fields["sharing"] == "ddp"  # DeepSpeed casts to bf16 again
    if base == "nf4" and name == "lora" and not hugging_face.QUANTIZED.search(model):
        base, means = "bf16", "axolotl quantizes 4 bits for qlora alone; bf16 is taken"
        parts.leave_out("load_in_4bit", True, means, "raises" if widened else "none", "either")
    kept = "fp32" if widened and base != "bf16" and is_mixture(model) else "bf16"
    whole, linear = parts.get("_whole_experts"), parts.get("_linear_experts")
    return words.adapters_of(
        parts,
        targets=() if parts.get("_linear") else words.targets_of(parts.get("_modules")),
        experts="tensor" if whole else "linear" if linear else kept,
        base=base,
        dtype="bf16" if _narrows(parts, base != "bf16", fields["sharing"]) else "fp32",
        dora=bool(parts.get("_dora")) or name == "dora",
    )


def _narrows(parts: Parts, quantized: bool, sharing: str) -> bool:
    """Return whether adapters are in bf16.

    (core/builders/rl.py, build: ensure_dtype, whose work FSDP1 undoes; TRL f2cd577, trainer/dpo_trainer.py,
    kto_trainer.py, grpo_trainer.py and reward_trainer.py of a quantized model)
    """
    method = str(parts.get("_rl") or ("reward" if parts.get("_reward") else "")).lower()
    by_trl = quantized and method not in ("", "orpo", "simpo")
    by_axolotl = bool(parts.get("_rl")) and sharing == "fsdp2"
    return by_trl or by_axolotl or parts.get("_autocast") is False


def parts_of(question: Question) -> Fields:
    """Return axolotl's parts of a question; raises ValueError where it cannot express it."""
    as_loaded = question.sharing in AS_LOADED and question.adapters is None
    kinds = (question.precision, "fp32" if as_loaded else question.states)
    switch = next((switch for switch, own in SWITCHES.items() if own == kinds), "_bf16")
    if switch == "_bf16" and question.precision not in ("bf16", "fp32"):
        raise ValueError(f"axolotl has no switch for precision {kinds[0]} with states in {kinds[1]}")
    parts: Fields = {
        "gradient_accumulation_steps": words.steps_of(question),
        "optimizer": words.optimizer_word(question),
        "_attention": words.attention_word(question),
        "_recompute": question.recompute != "none",
        "_reentrant": question.reentrant if question.recompute != "none" else None,
        "_activations": "activations" in question.offload or None,
        "_liger": question.fused_loss or None,
        "_plugins": [LIGER] if question.fused_loss or question.fused_layers else None,
        "_norms": question.fused_layers or None,
        "_gates": question.fused_layers or None,
        switch: question.precision != "fp32",
        **fsdp_section.section_parts(question),
        "_fsdp": fsdp_section.words_of(question),
        **{name: value or None for name, value in words.adapter_parts(question.adapters).items()},
    }
    if question.adapters is not None:
        parts["_adapter"] = "qlora" if question.adapters.base == "nf4" else "lora"
        parts["_double"] = None if question.adapters.double else False
        parts["_linear"] = not question.adapters.targets or None
    if question.sharing == "zero":
        kept = tuple(one for one in question.offload if one != "activations")
        parts |= deepspeed.section_parts(msgspec.structs.replace(question, tp=1, offload=kept))
    elif question.sharing in ("fsdp1", "fsdp2") and question.dp is not None:
        parts |= words.mesh(msgspec.structs.replace(question, dp=question.dp // question.ep))
    return parts
