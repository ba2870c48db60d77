"""axolotl's YAML.

Sources: axolotl commit 067b021 of July 2026 (utils/schemas/config.py, training.py, peft.py, fsdp.py, enums.py,
integrations/liger/args.py, cut_cross_entropy/args.py, expert_parallel/args.py).
"""

from __future__ import annotations

from harness.config.own_files.formats import deepspeed, fsdp_section
from harness.config.own_files.formats.words import (
    attention_of,
    implementation_of,
    optimizer_of,
    optimizer_written,
    targets_of,
)
from harness.config.own_files.setup import Adapters, NotUnderstood, OwnSetup
from harness.config.own_files.table import Fields, Flat, Key

NAME = "axolotl"
TITLE = "axolotl's YAML"
SOURCE = "axolotl 067b021"

_DS_KEYS, _DS_MATTERS, _DS_IRRELEVANT = deepspeed.prefixed("deepspeed.")

TRUTHS = {True: True, False: False, "true": True, "false": False, "offload": "offload", "unsloth": True,
          "offload_disk": "disk", "legacy": "offload", "disk": "disk", "hidden_states": "offload"}  # fmt: skip

KEYS = {
    "base_model": Key("model_name", "the model"),
    "sequence_len": Key("seq_len", "tokens per sequence", 512, "count"),
    "micro_batch_size": Key("micro_batch_size", "sequences per micro-batch", 1, "count"),
    "gradient_accumulation_steps": Key("gradient_accumulation_steps", "micro-batches per step", 1, "count"),
    "batch_size": Key("_batch", "sequences per step and rank", None, "count"),
    "gradient_checkpointing": Key("_recompute", "every layer is recomputed", False, values=TRUTHS),
    "activation_offloading": Key("_activations", "activations on the host", False, values=TRUTHS),
    "selective_checkpointing": Key("_selective", "attention is kept, the rest recomputed", False, "any"),
    "optimizer": Key("_optimizer", "optimizer", "adamw_torch_fused"),
    "bf16": Key("_bf16", "bf16 mixed precision", None, "flag"),
    "fp16": Key("_fp16", "fp16 mixed precision", None, "flag"),
    "fp8": Key("_fp8", "products in float8", None, "flag"),
    "bfloat16": Key("_bfloat16", "everything in bf16, without autocast", None, "flag"),
    "float16": Key("_float16", "everything in fp16", None, "flag"),
    "attn_implementation": Key("_attention", "attention's kernel", None),
    "flash_attention": Key("_flash", "older name of attn_implementation: flash_attention_2", None, "flag"),
    "sdp_attention": Key("_sdpa", "older name of attn_implementation: sdpa", None, "flag"),
    "flex_attention": Key("_flex", "older name of attn_implementation: flex_attention", None, "flag"),
    "xformers_attention": Key("_xformers", "older name of attn_implementation: xformers", None, "flag"),
    "eager_attention": Key("_eager", "older name of attn_implementation: eager", None, "flag"),
    "adapter": Key("_adapter", "lora or qlora", None),
    "lora_r": Key("_rank", "rank of the adapters", None, "count"),
    "lora_target_linear": Key("_linear", "adapters on every linear layer", None, "flag"),
    "lora_target_modules": Key("_modules", "layers with adapters", None, "any"),
    "load_in_4bit": Key("_4bit", "the frozen model in nf4", False, "flag"),
    "load_in_8bit": Key("_8bit", "the frozen model in int8", False, "flag"),
    "peft_use_dora": Key("_dora", "DoRA", None, "flag"),
    "fsdp": Key("_fsdp", "FSDP and its strategy", None, "any"),
    "dp_shard_size": Key("_shard", "ranks that shard one copy", None, "count"),
    "dp_replicate_size": Key("_replicas", "groups with full copies", None, "count"),
    "tensor_parallel_size": Key("tp", "tensor-parallel ranks", 1, "count"),
    "context_parallel_size": Key("cp", "context-parallel ranks", 1, "count"),
    "expert_parallel_size": Key("ep", "expert-parallel ranks", 1, "count"),
    "torch_compile": Key("compile", "torch.compile", False, "flag"),
    "liger_fused_linear_cross_entropy": Key("_liger", "fused output layer and loss", None, "flag"),
    "cut_cross_entropy": Key("_cut", "fused output layer and loss", None, "flag"),
    "chunked_cross_entropy": Key("_chunked", "loss in chunks", None, "flag"),
    "plugins": Key("_plugins", "axolotl's integrations", None, "any"),
    **fsdp_section.KEYS,
    **_DS_KEYS,
}  # fmt: skip

MATTERS = {
    "deepspeed": "a DeepSpeed configuration in another file, which was not found",
    "sample_packing": "sequences are packed, so that each is full",
    "tiled_mlp*": "the MLP is computed in tiles of the sequence",
    "layer_offloading": "frozen layers on the host",
    "unfrozen_parameters": "part of the model is frozen",
    "freeze_mm_modules": "part of the model is frozen",
    "relora*": "ReLoRA",
    "rl": "a second, frozen model or its log probabilities",
    "trl.*": "generation during training",
    "vllm.*": "generation during training",
    "qat.*": "quantization-aware training keeps more",
    "quantization.*": "quantization after training",
    "quantize_moe_experts": "experts' weights are quantized",
    "model_quantization_config*": "weights in another type",
    "gptq": "weights in GPTQ",
    "auto_find_batch_size": "the micro-batch shrinks until it fits",
    "lora_modules_to_save": "modules that are trained in full",
    "lora_on_cpu": "adapters on the host",
    "peft_layers_to_transform": "adapters on some layers alone",
    "peft_trainable_token_indices": "some embeddings are trained",
    "lora_*_kernel": "fused kernels of adapters, which keep less",
    "loraplus_*": "other learning rates, hence optimizer groups",
    "fp8_enable_fsdp_float8_all_gather": "parameters are gathered in float8",
    "fp32_norms": "norms in fp32",
    "flash_attn_fuse_mlp": "a fused MLP",
    "flash_attn_cross_entropy": "a fused loss that keeps logits",
    "liger_cross_entropy": "a fused loss that keeps logits",
    "liger_rope": "fused kernels that keep less",
    "liger_rms_norm*": "fused kernels that keep less",
    "liger_layer_norm": "fused kernels that keep less",
    "liger_swiglu": "fused kernels that keep less",
    "liger_glu_activation": "fused kernels that keep less",
    "use_kernels": "kernels of the Hub",
    "use_sonicmoe": "other kernels for experts",
    "use_scattermoe": "other kernels for experts",
    "experts_implementation": "how experts are multiplied",
    "ring_attn_func": "which context parallelism",
    "heads_k_stride": "context parallelism in steps of heads",
    "max_memory": "the model is spread over devices",
    "device_map": "the model is spread over devices",
    "gpu_memory_limit": "less memory is used on purpose",
    "deepcompile": "DeepCompile",
    "ddp_bucket_cap_mb": "DDP's buckets",
    "model_config.*": "sizes of the model are changed",
    "overrides_of_model_config.*": "sizes of the model are changed",
    "rope_scaling.*": "longer positions",
    "mixture_of_depths": "layers are skipped",
    "lisa_*": "some layers are trained at a time",
    "optim_target_modules": "layers of GaLore, APOLLO or others",
    "optim_args*": "settings of the optimizer",
    "embedding_lr*": "optimizer groups",
    "resize_token_embeddings_to_32x": "a larger vocabulary",
    "added_tokens": "a larger vocabulary",
    "tokens": "a larger vocabulary",
    "max_packed_sequence_len": "older key: sequences are packed to this length",
    "reward_model": "another head",
    "process_reward_model": "another head",
    **fsdp_section.MATTERS,
    **_DS_MATTERS,
}  # fmt: skip

IRRELEVANT = f"""
    model_type tokenizer_* processor_* trust_remote_code cls_model_config base_model_* is_*_derived_model strict seed
    output_dir hub_* save_* push_dataset_to_hub datasets* test_datasets* pretraining_dataset* dataset_* dataloader_*
    val_set_size eval_* evals_per_epoch saves_per_epoch max_steps num_epochs warmup_* learning_rate lr_* weight_decay
    adam_* max_grad_norm cosine_* loss_watchdog_* early_stopping_* load_best_model_at_end logging_steps wandb_* mlflow_*
    comet_* swanlab_* use_wandb use_tensorboard use_mlflow gradient_checkpointing_kwargs* tf32 train_on_inputs group_by_length pad_to_sequence_len
    eval_sample_packing sample_packing_* excess_length_strategy min_sample_len chat_template* special_tokens* resume_from_checkpoint
    auto_resume_from_checkpoints lora_alpha lora_dropout lora_model_dir lora_fan_in_fan_out peft_use_rslora peft_init_lora_weights
    shuffle_merged_datasets skip_prepare_dataset local_rank ddp_timeout ddp_broadcast_buffers ddp_find_unused_parameters xformers
    debug profiler_steps* include_tokens_per_second include_tkps neftune_noise_alpha flex_attn_compile_kwargs* torch_compile_* gc_steps
    low_cpu_mem_usage default_system_message eot_tokens dynamic_checkpoint* metric_for_best_model greater_is_better bench_* do_*
    torch_empty_cache_steps gc_collect_steps qlora_sharded_model_loading bnb_config_kwargs* remove_unused_columns total_num_tokens
    {fsdp_section.IRRELEVANT} {_DS_IRRELEVANT}
"""  # fmt: skip

RENAMED = {"sequence_parallel_degree": "context_parallel_size"}


def recognised(flat: Flat) -> int:
    """Return how many keys only axolotl has."""
    own = {"base_model", "sequence_len", "sample_packing", "lora_target_linear", "lora_r", "dataset_prepared_path",
           "val_set_size", "pad_to_sequence_len", "saves_per_epoch", "fsdp_version", "load_in_4bit"}  # fmt: skip
    return len(own & flat.keys()) + ("base_model" in flat) if "base_model" in flat else 0


def prepared(flat: Flat) -> Flat:
    """Return the values with FSDP's keys under one name."""
    return fsdp_section.without_prefix(
        {("fsdp_config.version" if k == "fsdp_version" else k): v for k, v in flat.items()}
    )


def settle(fields: Fields, flat: Flat) -> Fields:
    """Return fields of OwnSetup."""
    unclear: list[NotUnderstood] = []
    found = {name: value for name, value in fields.items() if not name.startswith("_")}
    if fields.get("_batch"):
        found["gradient_accumulation_steps"] = max(1, fields["_batch"] // found["micro_batch_size"])
    found |= fsdp_section.section_fields(fields, 1, unclear)
    section = deepspeed.own_section(fields)
    if any(key.startswith("deepspeed.") for key in flat):
        found |= deepspeed.section_fields(section, unclear) | {
            "tp": max(found["tp"], int(section.get("_tp") or 0))
        }
    found |= _mesh(fields, found)
    found["optimizer"] = optimizer_of("optimizer", fields["_optimizer"], unclear)
    found["optimizer_impl"] = implementation_of(fields["_optimizer"])
    found["recompute"] = "full" if fields["_recompute"] else found.get("recompute", "none")
    if fields["_selective"] and found["recompute"] == "full":
        found["recompute"] = "selective"
    if fields["_recompute"] in ("offload", "disk") or fields["_activations"]:
        found["offload"] = tuple(sorted({*found.get("offload", ()), "activations"}))
    found |= _precision(fields)
    found["attention"] = _attention(fields, unclear)
    found["adapters"] = _adapters(fields, found["precision"], unclear)
    plugins = " ".join(fields.get("_plugins") or ())
    found["fused_loss"] = bool(fields.get("_liger") or fields.get("_chunked") or fields.get("_cut")) or (
        "CutCrossEntropy" in plugins and fields.get("_cut") is not False
    )
    found["sequence_parallel"] = False
    return {**found, "not_understood": unclear}


def _mesh(fields: Fields, found: Fields) -> Fields:
    """Return data-parallel ranks where the file gives its mesh (dp_shard × dp_replicate × tp × cp)."""
    shard, replicas = fields.get("_shard"), fields.get("_replicas") or 1
    if shard is None:
        return {"replicas": replicas}
    if shard > 1 and not found.get("zero"):
        raise ValueError("dp_shard_size is given without fsdp_config; give fsdp_version and fsdp_config")
    return {"dp": shard * replicas * found["ep"], "replicas": replicas if shard > 1 else 1}


def _precision(fields: Fields) -> Fields:
    if fields.get("_fp8"):
        return {"precision": "fp8"}
    if fields.get("_bfloat16") or fields.get("_float16"):
        return {"precision": "bf16" if fields.get("_bfloat16") else "fp16", "states": "bf16"}
    if fields.get("_fp16"):
        return {"precision": "fp16"}
    return {"precision": "fp32" if fields.get("_bf16") is False else "bf16"}


def _attention(fields: Fields, unclear: list[NotUnderstood]) -> str:
    if fields.get("_attention"):
        return attention_of("attn_implementation", fields["_attention"], unclear)
    if fields.get("_eager"):
        return "explicit"
    return "flash"  # transformers takes sdpa where nothing is said


def _adapters(fields: Fields, precision: str, unclear: list[NotUnderstood]) -> Adapters | None:
    name = fields.get("_adapter")
    if name in (None, ""):
        if fields["_4bit"] or fields["_8bit"]:
            raise ValueError(
                "load_in_4bit or load_in_8bit without adapter: quantized weights cannot be trained"
            )
        return None
    if name not in ("lora", "qlora", "dora"):
        unclear.append(NotUnderstood("adapter", name, "adapters other than LoRA; LoRA's bytes are taken"))
    if "_rank" not in fields:
        raise ValueError(f"adapter is {name}, but lora_r is missing")
    return Adapters(
        rank=fields["_rank"],
        targets=() if fields.get("_linear") else targets_of(fields.get("_modules")),
        base="int8" if fields["_8bit"] else "nf4" if fields["_4bit"] or name == "qlora" else "bf16",
        dora=bool(fields.get("_dora")) or name == "dora",
    )


def written(setup: OwnSetup) -> Flat:
    """Return axolotl's keys of a set-up; raises ValueError where it cannot express it."""
    if setup.pp > 1:
        raise ValueError(f"axolotl has no pipeline; pp is {setup.pp}")
    fsdp_section.refuse_zero1(setup)
    flat: dict[str, object] = {
        "base_model": setup.model_name,
        "sequence_len": setup.seq_len or 512,
        "micro_batch_size": setup.micro_batch_size,
        "gradient_accumulation_steps": _steps(setup),
        "optimizer": optimizer_written(setup),
        "attn_implementation": "eager" if setup.attention == "explicit" else "flash_attention_2",
        "gradient_checkpointing": setup.recompute != "none",
        "torch_compile": setup.compile,
        "tensor_parallel_size": setup.tp,
        "context_parallel_size": setup.cp,
        "expert_parallel_size": setup.ep,
    }  # fmt: skip
    flat |= {"fp8": {"fp8": True}, "fp16": {"fp16": True}, "fp32": {"bf16": False}}.get(
        setup.precision, {"bf16": True}
    )
    if setup.states == "bf16":
        flat = {key: value for key, value in flat.items() if key not in ("bf16", "fp16")}
        flat["bfloat16" if setup.precision == "bf16" else "float16"] = True
    if setup.recompute == "selective":
        flat["selective_checkpointing"] = True
    if "activations" in setup.offload:
        flat["activation_offloading"] = True
    if setup.adapters is not None:
        flat |= _written_adapters(setup.adapters)
    if setup.fused_loss:
        flat["liger_fused_linear_cross_entropy"] = True
    if setup.engine == "zero":
        flat |= {
            f"deepspeed.{key}": value
            for key, value in deepspeed.section_written(_without_activations(setup)).items()
        }
    elif setup.engine in ("fsdp1", "fsdp2"):
        flat["fsdp_version"] = 1 if setup.engine == "fsdp1" else 2
        section = fsdp_section.section_written(setup)
        section.pop("fsdp_config.version")
        flat |= section
        if setup.dp is not None:
            flat |= {
                "dp_shard_size": setup.dp // setup.replicas // setup.ep,
                "dp_replicate_size": setup.replicas,
            }
    return flat


def _without_activations(setup: OwnSetup) -> OwnSetup:
    from dataclasses import replace

    return replace(setup, tp=1, offload=tuple(one for one in setup.offload if one != "activations"))


def _steps(setup: OwnSetup) -> int:
    if setup.gradient_accumulation_steps is None and setup.global_batch_size is not None:
        return setup.micro_batches()
    return setup.gradient_accumulation_steps or 1


def _written_adapters(adapters: Adapters) -> dict[str, object]:
    flat: dict[str, object] = {
        "adapter": "qlora" if adapters.base == "nf4" else "lora",
        "lora_r": adapters.rank,
    }
    if adapters.base != "bf16":
        flat["load_in_4bit" if adapters.base == "nf4" else "load_in_8bit"] = True
    if adapters.targets:
        flat["lora_target_modules"] = list(adapters.targets)
    else:
        flat["lora_target_linear"] = True
    if adapters.dora:
        flat["peft_use_dora"] = True
    return flat
