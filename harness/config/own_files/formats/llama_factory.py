"""LLaMA-Factory's YAML: TrainingArguments with arguments of its own.

Sources: LLaMA-Factory commit ff6d4d1 of August 2026 (hparams/model_args.py, finetuning_args.py, data_args.py,
training_args.py, megatron_bridge_args.py; model/patcher.py and model/model_utils/checkpointing.py for its defaults).
"""

from __future__ import annotations

from harness.config.own_files.formats import hugging_face
from harness.config.own_files.formats.words import targets_of
from harness.config.own_files.setup import Adapters, NotUnderstood, OwnSetup
from harness.config.own_files.table import Fields, Flat, Key

NAME = "llama_factory"
TITLE = "LLaMA-Factory's YAML"
SOURCE = "LLaMA-Factory ff6d4d1"

TYPES = {"lora": "lora", "full": "full", "freeze": "freeze", "oft": "oft"}

KEYS = {
    "model_name_or_path": Key("model_name", "the model"),
    "finetuning_type": Key("_type", "full, lora, freeze or oft", "lora", values=TYPES),
    "cutoff_len": Key("seq_len", "tokens per sequence", 2048, "count"),
    "lora_rank": Key("_rank", "rank of the adapters", 8, "count"),
    "lora_target": Key("_modules", "layers with adapters", "all", "any"),
    "use_dora": Key("_dora", "DoRA", False, "flag"),
    "quantization_bit": Key("_bits", "bits of the frozen weights", None, "count"),
    "quantization_method": Key("_method", "who quantizes them", "bnb"),
    "pure_bf16": Key("_pure", "everything in bf16", False, "flag"),
    "flash_attn": Key("_flash", "attention's kernel", "auto", values={
        "auto": "flash", "fa2": "flash", "fa3": "flash", "sdpa": "flash", "disabled": "explicit", False: "explicit"}),
    "disable_gradient_checkpointing": Key("_no_recompute", "nothing is recomputed", False, "flag"),
    "enable_liger_kernel": Key("_liger_", "Liger's kernels with its fused loss", False, "flag"),
    "fp8": Key("_fp8", "products in float8", False, "flag"),
    "tensor_model_parallel_size": Key("tp", "tensor-parallel ranks (Megatron)", 1, "count"),
    "pipeline_model_parallel_size": Key("pp", "pipeline ranks (Megatron)", 1, "count"),
    "expert_model_parallel_size": Key("ep", "expert-parallel ranks (Megatron)", 1, "count"),
    "context_parallel_size": Key("_cp", "context-parallel ranks (Megatron)", None, "count"),
    "virtual_pipeline_model_parallel_size": Key("virtual_stages", "stages per rank (Megatron)", 1, "count"),
    "sequence_parallel": Key("sequence_parallel", "Megatron's sequence parallelism", False, "flag"),
    "use_distributed_optimizer": Key("_distributed", "states are sharded (Megatron)", None, "flag"),
    "recompute_granularity": Key("_granularity", "what is recomputed (Megatron)", None),
    **{key: row for key, row in hugging_face.TRAINER.items() if key != "gradient_checkpointing"},
    "gradient_checkpointing": Key("_recompute", "every layer is recomputed", True, "flag"),
}  # fmt: skip

MATTERS = {
    "packing": "sequences are packed, so that each is full",
    "neat_packing": "sequences are packed, so that each is full",
    "use_galore": "gradients of low rank",
    "use_apollo": "gradients of low rank",
    "use_badam": "one block is trained at a time",
    "use_adam_mini": "fewer second moments",
    "use_muon": "Muon",
    "use_llama_pro": "added layers alone are trained",
    "use_unsloth*": "Unsloth's kernels",
    "use_kt": "KTransformers computes experts on the host",
    "kt_*": "KTransformers computes experts on the host",
    "use_mca": "Megatron-Core does the training",
    "use_hyper_parallel": "another engine does the training",
    "hyper_parallel_*": "another engine does the training",
    "freeze_trainable_*": "which layers are trained",
    "freeze_extra_modules": "which layers are trained",
    "freeze_language_model": "the language model is frozen",
    "additional_target": "modules that are trained in full",
    "shift_attn": "attention of LongLoRA",
    "mixture_of_depths": "layers are skipped",
    "upcast_*": "some layers in fp32",
    "resize_vocab": "a larger vocabulary",
    "fp8_enable_fsdp_float8_all_gather": "parameters are gathered in float8",
    "oft_*": "OFT's adapters",
    "ref_model*": "a second, frozen model",
    "reward_model*": "a second model",
    "pref_*": "a second, frozen model or its log probabilities",
    "rope_scaling": "longer positions",
    "recompute_*": "what is recomputed (Megatron)",
    "use_*_loss": "another loss",
    "moe_*": "how experts are computed (Megatron)",
    **hugging_face.TRAINER_MATTERS,
}

IRRELEVANT = f"""
    stage template dataset eval_dataset dataset_dir media_dir val_size max_samples overwrite_cache preprocessing_* streaming
    buffer_size mix_strategy interleave_probs plot_loss train_on_prompt mask_history default_system enable_thinking tool_format
    trust_remote_code cache_dir use_fast_tokenizer split_special_tokens model_revision low_cpu_mem_usage infer_* hf_hub_token
    ms_hub_token om_hub_token print_param_status adapter_name_or_path create_new_adapter lora_alpha lora_dropout lora_bias
    use_rslora pissa_* loraplus_lr_* galore_* apollo_* badam_* use_swanlab swanlab_* ray_* resources_per_worker* placement_strategy
    image_* video_* audio_* crop_to_patches freeze_vision_tower freeze_multi_modal_projector vllm_* sglang_* export_* generate*
    tokenized_path compute_accuracy disable_shuffling early_stopping_steps quantization_type double_quantization use_reentrant_gc
    use_kv_cache fp8_backend new_special_tokens_config megatron_pretrained_checkpoint export_hf_on_finish overlap_*
    ignore_pad_token_for_loss eval_on_each_dataset data_shared_file_system neftune* upcast_lmhead_output_ dpo_* kto_* simpo_* ppo_*
    {hugging_face.TRAINER_IRRELEVANT}
"""  # fmt: skip

RENAMED = {
    "lora_r": "lora_rank",
    "max_source_length": "cutoff_len",
    "use_fast_attn": "flash_attn",
}


def recognised(flat: Flat) -> int:
    """Return how many keys only LLaMA-Factory has."""
    own = {"finetuning_type", "cutoff_len", "template", "stage", "lora_target", "plot_loss", "dataset_dir",
           "quantization_bit", "lora_rank", "pure_bf16", "flash_attn"}  # fmt: skip
    found = len(own & flat.keys())
    return 2 * found if {"finetuning_type", "cutoff_len", "template", "stage"} & flat.keys() else 0


prepared = hugging_face.prepared


def settle(fields: Fields, flat: Flat) -> Fields:
    """Return fields of OwnSetup."""
    unclear: list[NotUnderstood] = []
    found = hugging_face.trainer_fields(fields, flat, unclear)
    found["cp"] = fields.get("_cp") or found["cp"]
    found["attention"] = fields["_flash"]
    found["fused_loss"] = found["fused_loss"] or fields["_liger_"]
    found["recompute"] = "full" if fields["_recompute"] and not fields["_no_recompute"] else "none"
    if fields["_pure"]:
        found |= {"precision": "bf16", "states": "bf16"}
    if fields["_fp8"]:
        found["precision"] = "fp8"
    if fields["_type"] in ("freeze", "oft"):
        unclear.append(
            NotUnderstood("finetuning_type", fields["_type"], "not modelled; full fine-tuning is taken")
        )
    if fields["_type"] == "lora":
        found["adapters"] = _adapters(fields, unclear)
    elif fields.get("_bits"):
        raise ValueError(
            f"quantization_bit is {fields['_bits']}; only finetuning_type lora trains on quantized weights"
        )
    if fields.get("_distributed") is not None or found["tp"] * found["pp"] * found["ep"] > 1:
        found |= {"engine": "megatron", "zero": 1 if fields.get("_distributed") else 0}
        found["recompute"] = fields.get("_granularity") or "none"
    return {**found, "not_understood": unclear}


def _adapters(fields: Fields, unclear: list[NotUnderstood]) -> Adapters:
    bits, method = fields.get("_bits"), fields["_method"]
    if bits is not None and (bits not in (4, 8) or method not in ("bnb", "bitsandbytes")):
        unclear.append(
            NotUnderstood("quantization_bit", f"{bits} by {method}", "other weights than nf4 and int8")
        )
    return Adapters(
        rank=fields["_rank"],
        targets=targets_of(fields["_modules"]),
        base={4: "nf4", 8: "int8"}.get(bits, "bf16") if bits else "bf16",
        dora=fields["_dora"],
    )


def written(setup: OwnSetup) -> Flat:
    """Return LLaMA-Factory's keys of a set-up; raises ValueError where it cannot express it."""
    flat = hugging_face.trainer_written(setup)
    flat |= {
        "model_name_or_path": setup.model_name,
        "stage": "sft",
        "finetuning_type": "lora" if setup.adapters is not None else "full",
        "cutoff_len": setup.seq_len or 2048,
        "flash_attn": "disabled" if setup.attention == "explicit" else "auto",
        "disable_gradient_checkpointing": setup.recompute == "none",
    }
    flat.pop("gradient_checkpointing")
    flat["enable_liger_kernel"] = flat.pop("use_liger_kernel")
    if setup.states == "bf16":
        flat["pure_bf16"] = True
        flat["bf16"] = False
    if setup.adapters is not None:
        flat |= {
            "lora_rank": setup.adapters.rank,
            "lora_target": ",".join(setup.adapters.targets) or "all",
            "use_dora": setup.adapters.dora,
            "quantization_bit": {"nf4": 4, "int8": 8}.get(setup.adapters.base),
        }
    return flat
