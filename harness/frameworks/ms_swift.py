"""ms-swift's command lines and YAML: `swift sft` on transformers, `megatron sft` on Megatron-Core.

Sources: ms-swift commit 3602360 of August 2026 (arguments/sft_args.py, rlhf_args.py, tuner_args.py and
base_args, trainers/arguments.py, megatron/arguments/megatron_args.py, config/*.json, cli/main.py).
"""

from __future__ import annotations

import math
import re
from typing import Any

from harness.frameworks import hugging_face, megatron, words
from harness.frameworks.table import Fields, Flat, Parts, is_off, number_of
from harness.question import Adapters, Direction, Question

PAIRS = ("dpo", "orpo", "simpo", "cpo", "rm")
"""Kinds of preferences whose chosen and rejected answers are computed in one pass."""

RERANKERS = ("reranker", "generative_reranker")
"""Values of task_type of which a sample is a query with several documents."""

GENERATED = ("grpo", "ppo", "gkd")
"""Kinds that generate what they train on."""

WEIGHTED = re.compile(r"\b(react|hermes|qwen|agentflan|alpha_umi)\b")
"""Values of loss_scale that weigh tokens otherwise than by 0 and 1 (loss_scale/config)."""

OTHER_LOSSES = ("label_smoothing_factor", "loss_type", "enable_dft_loss", "enable_channel_loss")
"""Keys whose loss is computed from logits (trainers/seq2seq_trainer.py, compute_loss)."""

ZERO = re.compile(r"0*\.?0*")
"""Zero as files and command lines write it."""

BASES = {"4": "nf4", "8": "int8"}
"""bitsandbytes' quantized weights by their bits."""

OF_MEGATRON = (
    "micro_batch_size",
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "recompute_granularity",
)
"""Keys that only a file for Megatron-Core has."""


def prepared(flat: Flat) -> Flat:
    """Return the values without Ray's section, and without that of a file with FSDP's settings."""
    values: dict[str, Any] = {}
    for key, value in flat.items():
        key = key.removeprefix("train.").removeprefix("fsdp.")
        if key == "fsdp" and isinstance(value, str) and value.endswith(".json"):  # which was not found
            values |= {"fsdp": "full_shard auto_wrap", "fsdp_config": value}
        else:
            values[key] = value
    return hugging_face.prepared(values)


def settle(parts: Parts) -> Fields:
    """Return fields of Question."""
    on_megatron = "megatron" in str(parts.get("_program")) or any(key in parts.flat for key in OF_MEGATRON)
    preferences = str(parts.get("_preferences") or ("dpo" if "rlhf" in str(parts.get("_program")) else ""))
    each = _sequences(parts, preferences)
    given = any(parts.flat.get(key) for key in ("adapters", "mcore_adapter"))  # megatron_args.py
    usual = "full" if on_megatron else "lora"
    parts["_type"] = "lora" if on_megatron and given else parts.get("_type") or usual
    fields: Fields = {"seq_len": _length(parts, preferences), "devices": _devices(parts)}
    own = (
        _megatron(parts, each, fields["devices"])
        if on_megatron
        else _trainer(parts, preferences, each, fields["devices"])
    )
    fields |= {**own, "devices": fields["devices"]}
    if parts["_type"] != "full":
        fields |= {"states": "fp32"}
    elif parts.get("_bits") and parts.get("_quantizer"):
        raise ValueError(
            f"quant_bits is {parts['_bits']} with tuner_type full; quantized weights cannot be trained"
        )
    else:
        _name_bits(parts)
    _other_models(parts, preferences, on_megatron)
    kept = preferences in ("dpo", "kto", "ppo") or (  # Megatron's has it whatever beta is (rlhf_mixin.py)
        preferences == "grpo" and (on_megatron or _with_divergence(parts))
    )
    if kept and parts["_type"] == "full" and "ref_model" not in parts.flat:
        fields["reference_weight_B"] = 2
    fields["fused_loss"] &= _can_be_fused(parts, preferences, on_megatron)
    if not (on_megatron or fields["fused_loss"]) and _keeps_fewer_logits(parts, preferences):
        why = "logits of trained tokens alone, where no key says otherwise"
        parts.leave_out("use_logits_to_keep", None, why, "lowers", "lowers")
    return fields | _objective(parts, preferences, on_megatron)


def _sequences(parts: Parts, preferences: str) -> int:
    """Return the sequences of a sample, which are in one micro-batch; a packed row is one that holds them.

    (template/base.py, _rlhf_encode and the data collators of pairs, embeddings and rerankers;
    dataset/packing.py, create_packed_idx: a sample's length is the sum of its sequences')
    """
    task, packed = str(parts.flat.get("task_type")), words.is_on(parts.flat.get("packing"))
    ranked, embedded = task in RERANKERS, task == "embedding"
    if not (ranked or embedded or preferences in PAIRS):
        if packed and preferences == "kto" and parts.flat.get("loss_type") != "apo_zero_unpaired":
            why = "a packed row holds the answers of KTO's divergence, too, which are not trained on"
            parts.leave_out("packing_length", parts.get("_packed"), why, "lowers", "lowers")
        return 1
    if packed:
        why = "a sample whose sequences are longer than a packed row together is a longer row of its own"
        parts.leave_out("packing_length", parts.get("_packed"), why, "raises", "raises")
        return 1
    if ranked:
        positive, negative = parts.get("_positive", 1), parts.get("_negative", 7)
        why = f"of each sample {positive} × (1 + {negative}) documents are taken; data may have fewer"
        parts.leave_out("dataset", None, why, "lowers", "lowers")
        return int(positive * (1 + negative))
    if embedded:
        why = "of each sample an anchor and its positive are taken, to which data may add negatives"
        parts.leave_out("dataset", None, why, "raises", "raises")
    return 2


def _objective(parts: Parts, preferences: str, on_megatron: bool) -> Fields:
    """Return what is trained, with whose passes, and whether sequences are shorter than max_length."""
    if preferences in GENERATED:
        of = {"gkd": "distillation"}.get(preferences, preferences)
        rollout = words.rollout_of(parts.flat.get("use_vllm", on_megatron))
        return {"objective": of, "forward_passes": _passes(parts, preferences), "rollout": rollout}
    objective = {"rm": "reward", "kto": "kto"}.get(preferences, "dpo" if preferences else "sft")
    packed = words.is_on(parts.flat.get("packing"))
    return {"objective": objective, "forward_passes": _passes(parts, preferences), "shorter": not packed}


def _can_be_fused(parts: Parts, preferences: str, on_megatron: bool) -> bool:
    """Return whether the loss is one of those that have a fused kernel; others take the whole logits.

    Megatron's is that of labels (megatron/trainers/*_trainer.py). Liger's are GRPO's, GKD's and SFT's: not of
    ranks that share a sequence, nor of weighted tokens (trainers/seq2seq_trainer.py, rlhf_trainers).
    """
    if on_megatron:
        return preferences not in ("grpo", "gkd")
    other = any(not is_off(parts.flat.get(key)) for key in OTHER_LOSSES)
    weighted = other or bool(WEIGHTED.search(str(parts.flat.get("loss_scale"))))
    return preferences in ("grpo", "gkd") or (preferences == "" and parts["_ulysses"] == 1 and not weighted)


def _keeps_fewer_logits(parts: Parts, preferences: str) -> bool:
    """Return whether logits are computed of trained tokens alone, without a key that asks for it.

    (trainers/mixin.py, get_use_logits_to_keep; rlhf_trainers/*_trainer.py: of GRPO they are the completion's)
    """
    if preferences == "grpo":
        return "_length" in parts
    every = " pt" in str(parts.get("_program")) or str(parts.flat.get("loss_scale")).startswith("all")
    own = every or "use_logits_to_keep" in parts.flat or parts["_ulysses"] > 1
    task = str(parts.flat.get("task_type", "causal_lm"))
    return preferences in ("", "dpo", "kto", "gkd") and task == "causal_lm" and not own


def _with_divergence(parts: Parts) -> bool:
    """Return whether GRPO's loss has the divergence from a reference: beta is 0.04 where it is not given."""
    beta = str(parts.flat.get("beta"))
    return beta.lower() != "false" and not ZERO.fullmatch(beta)


def _passes(parts: Parts, preferences: str) -> int:
    """Return the forward passes without gradients per sequence.

    GRPO always computes the old log-probabilities anew (rlhf_trainers/grpo_trainer.py and
    megatron/trainers/grpo_trainer.py). GKD's beta mixes two divergences and has no reference; its teacher is
    the model itself where none is given, and costs no pass on a server or on Ray's GPUs of its own
    (gkd_trainer.py of both, ray/megatron/gkd_trainer.py). KTO's divergence is a second pass of model and
    reference (kto_trainer.py of both).
    """
    served = bool(parts.flat.get("teacher_model_server") or parts.flat.get("teacher.gpus"))
    if preferences == "grpo":
        return 1 + _with_divergence(parts) + ("teacher_model" in parts.flat and not served)
    if preferences == "kto":
        asked = parts.flat.get("calculate_KL")
        off = asked is not None and is_off(asked)
        return 1 if off or parts.flat.get("loss_type") == "apo_zero_unpaired" else 3
    return {"dpo": 1, "ppo": 1, "gkd": int(not served)}.get(preferences, 0)


def _devices(parts: Parts) -> int | None:
    visible = next((parts.flat[key] for key in parts.flat if key.endswith("VISIBLE_DEVICES")), None)
    program, per_node = str(parts.get("_program")), "launcher.NPROC_PER_NODE" in parts.flat
    if (
        " " in program
        and not per_node
        and "_world" not in parts
        and visible is not None
        and "$" not in visible
    ):
        if "," in visible and program.startswith("swift"):
            why = "one process, whose model is spread over the GPUs"
            parts.leave_out("launcher.CUDA_VISIBLE_DEVICES", visible, why, "lowers", "either")
        return 1
    return words.devices_of(parts)


def _length(parts: Parts, preferences: str) -> int | None:
    """Return the tokens per sequence; without max_length they are the data's, up to the model's positions."""
    length = parts.get("_packed") or parts.get("_length")
    if length is None:
        why = "max_length is missing: sequences are as long as the data's, up to the model's positions"
        parts.leave_out("max_length", None, why, "raises", "raises")
    on_data = preferences == "gkd" and not number_of("lmbda", parts.flat.get("lmbda", 0.5), "number")
    if preferences in GENERATED and not on_data:
        return _with_turns(parts, int(length or 0), int(parts["_completion"]))
    return length and int(length)


def _with_turns(parts: Parts, prompt: int, completion: int) -> int:
    """Return the tokens of a prompt and its completion, which is that of one turn where there are several.

    rlhf_trainers/args_mixin.py: completion_length_limit_scope is per_round by default, max_turns None.
    """
    scheduler, turns = parts.flat.get("multi_turn_scheduler"), parts.flat.get("max_turns")
    if not scheduler or parts.flat.get("completion_length_limit_scope") == "total":
        return prompt + completion
    if turns is None:
        why = "turns without a limit of their number; one is taken"
        parts.leave_out("multi_turn_scheduler", scheduler, why, "raises", "raises")
        return prompt + completion
    why = "turns that may be fewer and shorter, and what is said between them"
    parts.leave_out("multi_turn_scheduler", scheduler, why, "either", "either")
    whole = prompt + completion * int(number_of("max_turns", turns, "count"))
    most = parts.flat.get("vllm_max_model_len")
    return min(whole, int(number_of("vllm_max_model_len", most, "count"))) if most else whole


def _trainer(parts: Parts, preferences: str, each: int, devices: int | None) -> Fields:
    """Return fields of a run on transformers' trainer."""
    dtype = parts.get("_dtype") or "bf16"
    if "_bf16" not in parts and "_fp16" not in parts:  # mixed precision follows the type of the weights
        parts |= {"_bf16": dtype == "bf16", "_fp16": dtype != "bf16"}
    fields = hugging_face.trainer_fields(parts)
    micro, steps = parts["_micro"], parts.get("gradient_accumulation_steps")
    if steps is None:
        steps = 1 if preferences == "grpo" else max(1, math.ceil(16 / micro / devices)) if devices else None
    fields |= {
        "micro_batch_size": micro * each,
        "gradient_accumulation_steps": steps,
        "sequence_parallel": False,
    }
    if steps is None:
        fields["global_batch_size"] = max(16, micro) * each
    adapters = _adapters(parts) if parts["_type"] != "full" else None
    key = "sequence_parallel_size"
    fields |= {"adapters": adapters, **words.shared_sequence(key, parts["_ulysses"], adapters, parts)}
    if parts.get("_sp", 1) > 1:  # trainers/mixin.py, get_train_dataloader: every rank takes other sequences
        why = "ranks of one sequence by accelerate, which ms-swift's own data loader does not know"
        parts.leave_out("parallelism_config.sp_size", parts["_sp"], why, "either", "either")
    if parts.get("_autotp"):
        fields["tp"] = parts["_autotp"]
    if parts.get("_attention"):
        name = parts["_attention"].replace("flash_attn", "flash_attention_2")
        fields["attention"] = words.attention_of("attn_impl", name, parts)
    if fields["sharing"] == "ddp":
        if "launcher.config_file" not in parts.flat:
            parts.assumed.pop("sharing", None)  # --deepspeed and --fsdp are options of the command itself
        fields["states"] = "bf16" if dtype == "bf16" else "fp32"
        given = any(key.endswith("_kwargs.use_reentrant") for key in parts.flat)
        if devices != 1 and not given:  # trainers/mixin.py, _fix_gradient_checkpointing
            fields["reentrant"] = False
    return fields | {"recompute_modules": (), "etp": None}


def _megatron(parts: Parts, each: int, devices: int | None) -> Fields:
    """Return fields of a run on Megatron-Core."""
    dtype = parts.get("_dtype") or "bf16"
    parts["_optimizer"] = parts.get("_mcore_optimizer") or "adam"
    parts["_distributed"] &= "muon" not in parts["_optimizer"]  # megatron_args.py, _check_muon
    parts["_backend"] = parts["_backend"].partition("_")[0]  # of flash_2 to flash_4, which name its version
    parts |= {"_bf16": parts.get("_bf16", dtype == "bf16"), "_fp16": parts.get("_fp16", dtype == "fp16")}
    if dtype == "fp16" and not words.is_on(parts.flat.get("accumulate_allreduce_grads_in_fp32")):
        parts.setdefault("_wide_grads", False)  # megatron_args.py switches it on for bf16 alone
    if parts["_type"] == "full":
        megatron.name_late_reduction(parts)
    return megatron.core_fields(parts) | {
        "micro_batch_size": parts["_mcore_micro"] * each,
        "global_batch_size": parts["_global"] * each,
        "grouped_experts": parts["_grouped"],
        "fused_loss": parts["_fusion"],
        "adapters": _adapters(parts, True) if parts["_type"] != "full" else None,
    }


def _name_bits(parts: Parts) -> None:
    """Name bits that quantize nothing (arguments/base_args/quant_args.py)."""
    bits = parts.flat.get("quant_bits")
    if bits is not None and parts.get("_quantizer") is None:
        why = "nothing is quantized without quant_method"
        parts.leave_out("quant_bits", bits, why, "none", "none")


def _adapters(parts: Parts, on_megatron: bool = False) -> Adapters:
    kind, bits, method = parts["_type"], parts.get("_bits"), parts.get("_quantizer")
    if kind not in ("lora", "lora_llm"):
        parts.leave_out("tuner_type", kind, "a tuner other than LoRA, whose bytes are taken")
    base = BASES.get(str(bits), "bf16") if method == "bnb" else "bf16"  # quant_args.py: by quant_method alone
    if base == "bf16" and not on_megatron:  # whose bridge makes bf16 of what was quantized beforehand
        parts["_bits"] = None
        base = hugging_face.base_of(parts, "model").get("base", base)
    if method is not None and base == "bf16":
        parts.leave_out(
            "quant_bits", f"{bits} by {method}", "other weights than nf4 and int8; bf16 is taken", "lowers"
        )
    else:
        _name_bits(parts)
    if parts.get("_regex"):
        parts.leave_out("target_regex", parts["_regex"], "every linear layer is taken", "lowers", "lowers")
    targets = words.targets_of(parts["_targets"])
    named = parts["_targets"] if isinstance(parts["_targets"], list) else []
    if others := [name for name in named if name in ("embed_tokens", "lm_head", "all-embedding")]:
        parts.leave_out("target_modules", others, "adapters on these layers, too", "raises", "raises")
    return words.adapters_of(parts, targets=targets, base=base, dtype=parts.get("_adapter_dtype") or "fp32")


def _other_models(parts: Parts, preferences: str, on_megatron: bool) -> None:
    """Name what preferences or generation add to supervised training of the same model."""
    if preferences not in GENERATED:
        return
    if preferences == "gkd" and parts.flat.get("gkd_logits_topk") is None:
        why = "the teacher's logits of the whole vocabulary, next to the model's"
        parts.leave_out("gkd_logits_topk", None, why, "raises", "none")
    if str(parts.flat.get("use_vllm", on_megatron)).lower() != "true":
        why = "generation by the model itself, with its cache"
        parts.leave_out("use_vllm", False, why, "raises", "raises")
    else:
        shared = str(parts.flat.get("vllm_mode", "colocate")) != "server"
        key = "vllm_gpu_memory_utilization"
        share = parts.flat.get(key, parts.flat.get(f"rollout.{key}", 0.9))
        why = "the rollout engine" + (", which shares the GPUs" if shared else ", on other GPUs")
        memory: Direction = "raises" if shared else "none"
        parts.leave_out(key, share, why, memory, "raises")


def parts_of(question: Question) -> Fields:
    """Return ms-swift's parts of a question; raises ValueError where it cannot express it."""
    adapters = question.adapters
    if question.sharing == "megatron":
        parts = megatron.parts_of(question) | {
            "_fusion": question.fused_loss,
            "fused_loss": None,
            "_micro": None,
        }
        parts |= {"_mcore_micro": question.micro_batch_size, "_global": parts.pop("global_batch_size")}
        parts |= {"_mcore_optimizer": parts["_optimizer"], "optimizer": None}
    elif question.tp * question.pp * question.ep > 1:
        raise ValueError("ms-swift has tp, pp and ep with sharing megatron alone")
    else:
        parts = hugging_face.trainer_parts(question) | {"_ulysses": question.cp, "cp": None}
        parts["_attention"] = words.attention_word(question)
    parts |= {"_type": "lora" if adapters else "full", "_dtype": "bf16"}
    if adapters is not None:
        bits = {"nf4": 4, "int8": 8}.get(adapters.base)
        parts |= {"_bits": bits, "_quantizer": "bnb" if bits else None}
        parts |= {"_targets": list(adapters.targets) or "all-linear", "_modules": None}
    return parts
