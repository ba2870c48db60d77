"""Megatron Bridge's YAML of overrides, and the YAML of NeMo up to 2.

Sources: Megatron Bridge commit 067f987 of August 2026 (training/config.py, training/mixed_precision.py) and NeMo
commit 8cfedd7 of September 2025 (examples/nlp/language_modeling/conf/megatron_gpt_config.yaml). Most of their
keys are Megatron-LM's arguments in sections.
"""

from __future__ import annotations

from typing import Any

from harness.config.own_files.formats import megatron
from harness.config.own_files.formats.megatron_tables import IRRELEVANT as MEGATRON_IRRELEVANT
from harness.config.own_files.formats.megatron_tables import KEYS as MEGATRON_KEYS
from harness.config.own_files.formats.megatron_tables import MATTERS as MEGATRON_MATTERS
from harness.config.own_files.formats.megatron_tables import RENAMED as MEGATRON_RENAMED
from harness.config.own_files.setup import OwnSetup
from harness.config.own_files.table import Fields, Flat, Key, flag_of

NAME = "megatron_bridge"
TITLE = "Megatron Bridge's or NeMo's YAML"
SOURCE = "Megatron Bridge 067f987"

SECTIONS = ("model", "train", "trainer", "ddp", "dist", "optimizer", "comm_overlap")
"""Whose keys are Megatron-LM's arguments."""

PRECISIONS = ("bf16_mixed", "fp16_mixed", "bf16_with_fp8", "bf16_with_mxfp8", "bf16_with_nvfp4")
"""How names of Megatron Bridge's mixed precision begin (training/mixed_precision.py)."""

KEYS = {
    **MEGATRON_KEYS,
    "mixed_precision": Key("_recipe", "mixed precision", None, "any"),
    "precision": Key("_precision", "NeMo's precision", None, "any"),
    "devices": Key("_per_node", "GPUs per node", None, "count"),
    "num_nodes": Key("_nodes", "nodes", None, "count"),
    "hf_path": Key("model_name", "the model"),
    "activation": Key("_activation", "NeMo's activation", None),
    "gated_linear_unit": Key("_swiglu", "gated MLP", None, "flag"),
    "bias": Key("_bias", "NeMo's biases", None, "flag"),
    "add_bias_linear": Key("_bias_", "Megatron-Core's biases", None, "flag"),
    "share_embeddings_and_output_weights": Key("_tied", "embeddings are the output layer, too", None, "flag"),
    "optim_name": Key("_optim", "NeMo's optimizer", None),
    "optim.name": Key("_optim", "NeMo's optimizer", None),
    "fp8_hybrid": Key("_fp8_hybrid", "NeMo's float8 format", None, "flag"),
    "fsdp": Key("_nemo_fsdp", "torch's FSDP", None, "flag"),
    "peft.dim": Key("_rank", "rank of the adapters", None, "count"),
}
KEYS["use_distributed_optimizer"] = MEGATRON_KEYS["use_distributed_optimizer"]._replace(default=None)

MATTERS = {
    **MEGATRON_MATTERS,
    "peft.*": "adapters",
    "optim.bucket_cap_mb": "the optimizer's buckets",
    "grad_reduce_in_fp32": "",
    "megatron_amp_O2": "",
    "fsdp_*": "how torch's FSDP shards",
    "cross_entropy_loss_fusion": "a fused loss that keeps logits",
    "num_micro_batches_with_partial_activation_checkpoints": "some micro-batches alone are recomputed",
    "activations_checkpoint_layers_per_pipeline": "other layers per stage are recomputed",
    "tp_comm_*": "tensor parallelism overlaps with its collectives",
    "ub_tp_comm_overlap": "tensor parallelism overlaps with its collectives",
    "params_dtype": "the type of parameters",
    "pipeline_dtype": "",
}
MATTERS = {key: why for key, why in MATTERS.items() if why}

IRRELEVANT = f"""
    {MEGATRON_IRRELEVANT} name exp_manager.* defaults data.* tokenizer.* dataset.* scheduler.* logger.* checkpoint.* rng.*
    validation.* profiling.* ft.* straggler.* nvrx_straggler.* env_vars.* accelerator enable_* use_distributed_sampler max_epochs
    max_steps limit_* val_check_interval accumulate_grad_batches gradient_clip_val benchmark restore_from_* mcore_gpt
    use_scaled_init_method ffn_dropout do_layer_norm_weight_decay pre_process post_process headscale transformer_block_type
    openai_gelu normalize_attention_scores attention_type batch_p2p_comm overlap_p2p_comm native_amp_* grad_allreduce_* grad_div_*
    get_attention_mask_from_fusion resume_from_checkpoint onnx_safe apex_* gradient_as_bucket_view sync_batch_comm
    nsys_profile.* optim.* reduce_amax use_emha fp8_e4m3 s3_checkpointing.* seq_len_interpolation_factor
    scale_positional_embedding reset_lr* nccl_communicator_* validation_param_* dist_ckpt_* megatron_timer_kwargs.* gc_interval
    transformer_engine sharp grad_reduce_in_fp32 megatron_amp_O2 pipeline_dtype autocast_dtype generation_config* hf_* recipe
    target _target_ *._target_ init_model_with_meta_device finetune_lr average_in_collective check_for_nan_in_grad
    ub_tp_comm_overlap_cfg drop_layers precision_ recompute_num_layers_ model_type
"""  # fmt: skip

RENAMED = dict(MEGATRON_RENAMED)


def recognised(flat: Flat) -> int:
    """Return how many keys only these have: Megatron-LM's arguments in sections."""
    own = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "global_batch_size", "micro_batch_size", "seq_length",
           "context_parallel_size", "train_iters", "encoder_seq_length", "num_layers")  # fmt: skip
    found = sum(f"{section}.{key}" in flat for section in ("model", "train", "dataset") for key in own)
    return (
        found
        + 2 * bool({"ddp.use_distributed_optimizer", "exp_manager.exp_dir", "mixed_precision"} & flat.keys())
        if found
        else 0
    )


def prepared(flat: Flat) -> Flat:
    """Return the values without their sections, with references to other keys filled in."""
    values: dict[str, Any] = {}
    for key, value in flat.items():
        section, dot, name = key.partition(".")
        if isinstance(value, str) and value.startswith("${") and value.endswith("}"):
            path = value[2:-1]
            value = flat.get(f"model{path}" if path.startswith(".") else path, value)
            if isinstance(value, str) and value.startswith("${"):
                continue
        if key == "dataset.seq_length":
            values.setdefault("seq_length", value)
        elif key == "optimizer.optimizer":
            values["optimizer"] = value
        elif section in SECTIONS and dot:
            values[name] = value
        else:
            values[key] = value
    if values.get("fp8") is False or values.get("fp8") is None:
        values.pop("fp8", None)
    return values


def settle(fields: Fields, flat: Flat) -> Fields:
    """Return fields of OwnSetup."""
    fields = dict(fields)
    recipe = str(fields.get("_recipe") or "")
    precision = str(fields.get("_precision") or "").lower()
    if recipe and not recipe.startswith(PRECISIONS) and not recipe.startswith("{"):
        raise ValueError(f"mixed_precision is {recipe!r}; its names begin with {', '.join(PRECISIONS)}")
    if recipe or "bf16" in precision or not precision:
        fields["_bf16"] = "fp16" not in recipe or "bf16" in recipe
    fields["_fp16"] = not fields["_bf16"] and ("fp16" in recipe or precision.startswith("16"))
    if "fp8" in recipe or "nvfp4" in recipe:
        fields["_fp8"] = "hybrid"
        fields["_fp8_recipe"] = "mxfp8" if "mxfp8" in recipe else fields.get("_fp8_recipe")
        if "nvfp4" in recipe:
            fields["_fp4"] = "e2m1"
    if "_activation" in fields:
        fields["_swiglu"] = "swiglu" in fields["_activation"]
    if fields.get("_bias") is False or fields.get("_bias_") is False:
        fields["_no_bias"] = True
    if "_tied" in fields:
        fields["_untied"] = not fields["_tied"]
    name = str(fields.get("_optim") or fields["_optimizer"])
    fields["_optimizer"] = "adam" if "adam" in name.lower() else name
    fields["_distributed"] = _distributed(fields, name)
    if fields.get("_nemo_fsdp"):
        fields["_torch_fsdp2"] = True
    rank = fields.pop("_rank", None)
    found = megatron.settle(fields, flat)
    if rank:
        from harness.config.own_files.setup import Adapters

        found["adapters"] = Adapters(rank=rank)
    return found


def _distributed(fields: Fields, name: str) -> bool:
    """Return whether states are sharded: Megatron Bridge's default; NeMo's with its distributed optimizers."""
    if fields.get("_distributed") is not None:
        return flag_of("use_distributed_optimizer", fields["_distributed"])
    return "distributed" in name or "_optim" not in fields


def written(setup: OwnSetup) -> Flat:
    """Return Megatron Bridge's keys of a set-up; raises ValueError where they cannot express it."""
    arguments = {key: value for key, value in megatron.arguments_of(setup).items() if value is not None}
    recipe = {"bf16": "bf16_mixed", "fp16": "fp16_mixed", "fp8": "bf16_with_fp8_current_scaling_mixed",
              "mxfp8": "bf16_with_mxfp8_mixed", "nvfp4": "bf16_with_nvfp4_mixed"}.get(setup.precision)  # fmt: skip
    if recipe is None:
        raise ValueError(f"Megatron Bridge has no recipe for precision {setup.precision}")
    for one in ("bf16", "fp16", "fp8_format", "fp8_recipe", "fp4_format"):
        arguments.pop(one, None)
    names = {new: old for old, new in {**BRIDGE_NAMES}.items()}
    flat: dict[str, object] = {}
    for key, value in arguments.items():
        section = {"micro_batch_size": "train", "global_batch_size": "train", "use_distributed_optimizer": "ddp",
                   "use_megatron_fsdp": "ddp", "data_parallel_sharding_strategy": "ddp", "use_torch_fsdp2": "dist",
                   "num_distributed_optimizer_instances": "ddp", "optimizer_cpu_offload": "optimizer",
                   "optimizer": "optimizer"}.get(key, "model")  # fmt: skip
        flat[f"{section}.{names.get(key, key)}"] = value
    flat.setdefault("ddp.use_distributed_optimizer", False)
    flat["mixed_precision"] = recipe
    return flat


BRIDGE_NAMES = {
    "virtual_pipeline_model_parallel_size": "num_virtual_stages_per_pipeline_rank",
    "num_moe_experts": "num_experts",
}
"""Megatron-Core's names of arguments."""
