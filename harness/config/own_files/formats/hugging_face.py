"""Hugging Face's TrainingArguments: JSON, YAML, or the command line of a training script.

Sources: transformers 5.23.0 (training_args.py) and, for the arguments of scripts, TRL's ModelConfig and SFTConfig
(lora_r, load_in_4bit, max_length) and transformers' run_clm.py (block_size, model_name_or_path).
"""

from __future__ import annotations

from harness.config.own_files.formats import deepspeed, fsdp_section
from harness.config.own_files.formats.words import (
    DTYPES,
    attention_of,
    implementation_of,
    optimizer_of,
    optimizer_written,
    targets_of,
)
from harness.config.own_files.setup import Adapters, NotUnderstood, OwnSetup
from harness.config.own_files.table import Fields, Flat, Key

NAME = "hugging_face"
TITLE = "Hugging Face's TrainingArguments"
SOURCE = "transformers 5.23.0"

_DS_KEYS, _DS_MATTERS, _DS_IRRELEVANT = deepspeed.prefixed("deepspeed.")

TRAINER = {
    "per_device_train_batch_size": Key("micro_batch_size", "sequences per micro-batch", 8, "count"),
    "gradient_accumulation_steps": Key("gradient_accumulation_steps", "micro-batches per step", 1, "count"),
    "optim": Key("_optimizer", "optimizer", "adamw_torch_fused"),
    "bf16": Key("_bf16", "bf16 mixed precision", False, "flag"),
    "fp16": Key("_fp16", "fp16 mixed precision", False, "flag"),
    "gradient_checkpointing": Key("_recompute", "every layer is recomputed", False, "flag"),
    "activation_checkpointing": Key("_recompute_", "newer name of gradient_checkpointing", None, "flag"),
    "torch_compile": Key("compile", "torch.compile", False, "flag"),
    "use_liger_kernel": Key("_liger", "Liger's kernels with its fused loss", False, "flag"),
    "fsdp": Key("_fsdp", "FSDP and its strategy", None, "any"),
    "parallelism_config.dp_replicate_size": Key("_replicas", "groups with full copies", None, "count"),
    "parallelism_config.dp_shard_size": Key("_shard", "ranks that shard one copy", None, "count"),
    "parallelism_config.tp_size": Key("tp", "tensor-parallel ranks", 1, "count"),
    "parallelism_config.cp_size": Key("cp", "context-parallel ranks", 1, "count"),
    **fsdp_section.KEYS,
    **_DS_KEYS,
}  # fmt: skip
"""TrainingArguments' own, which LLaMA-Factory has, too."""

KEYS = {
    "model_name_or_path": Key("model_name", "the model"),
    "max_length": Key("seq_len", "tokens per sequence (TRL)", None, "count"),
    "dtype": Key("_dtype", "the type in which the model is loaded", None),
    "attn_implementation": Key("_attention", "attention's kernel", None),
    "use_peft": Key("_peft", "LoRA", None, "flag"),
    "lora_r": Key("_rank", "rank of the adapters", 16, "count"),
    "lora_target_modules": Key("_modules", "layers with adapters", None, "any"),
    "use_dora": Key("_dora", "DoRA", None, "flag"),
    "load_in_4bit": Key("_4bit", "the frozen model in nf4", False, "flag"),
    "load_in_8bit": Key("_8bit", "the frozen model in int8", False, "flag"),
    "launcher.nproc_per_node": Key("_per_node", "torchrun's processes per node", None, "int"),
    "launcher.nnodes": Key("_nodes", "torchrun's nodes", None, "int"),
    "launcher.num_processes": Key("_processes", "accelerate's processes", None, "count"),
    "launcher.num_gpus": Key("_gpus", "deepspeed's GPUs per node", None, "count"),
    "launcher.num_nodes": Key("_nodes_", "deepspeed's nodes", None, "count"),
    **TRAINER,
}  # fmt: skip

TRAINER_MATTERS = {
    "deepspeed": "a DeepSpeed configuration in another file, which was not found",
    "fsdp_config": "FSDP's settings in another file, which was not found",
    "auto_find_batch_size": "the micro-batch shrinks until it fits",
    "group_by_length": "sequences of like length share a micro-batch",
    "train_sampling_strategy": "sequences of like length share a micro-batch",
    "optim_args": "settings of the optimizer",
    "optim_target_modules": "layers of GaLore, APOLLO or others",
    "label_smoothing_factor": "a second loss over the logits",
    "torch_compile_mode": "torch.compile's mode",
    "liger_kernel_config.*": "which of Liger's kernels",
    "liger_kernel_config": "which of Liger's kernels",
    "ddp_bucket_cap_mb": "DDP's buckets",
    "ddp_static_graph": "DDP's static graph",
    "accelerator_config.*": "accelerate's own settings",
    "parallelism_config.sp_size": "Ulysses' ranks share each sequence",
    "parallelism_config.*": "accelerate's mesh",
    "use_cpu": "no GPU",
    "full_determinism": "deterministic kernels, some of them slower",
    "sortish_sampler": "sequences of like length share a micro-batch",
    **fsdp_section.MATTERS,
    **_DS_MATTERS,
}  # fmt: skip

MATTERS = {
    "packing": "sequences are packed, so that each is full",
    "padding_free": "sequences are packed, so that each is full",
    "activation_offloading": "activations on the host",
    "lora_modules_to_save": "modules that are trained in full",
    "use_unsloth": "Unsloth's kernels",
    "freeze_*": "part of the model is frozen",
    "config_overrides": "sizes of the model are changed",
    "use_flash_attn*": "older switch of a script for flash attention",
    "quantization*": "quantized weights",
    "bits": "quantized weights",
    **TRAINER_MATTERS,
}

TRAINER_IRRELEVANT = f"""
    output_dir overwrite_output_dir do_* eval_* evaluation_strategy per_device_eval_batch_size prediction_loss_only
    learning_rate weight_decay adam_* max_grad_norm num_train_epochs max_steps lr_scheduler_* warmup_* log_* logging_*
    save_* seed data_seed tf32 dataloader_* run_name disable_tqdm remove_unused_columns label_names load_best_model_at_end
    metric_for_best_model greater_is_better ignore_data_skip report_to push_to_hub* hub_* gradient_checkpointing_kwargs*
    activation_checkpointing_kwargs* resume_from_checkpoint ddp_find_unused_parameters ddp_timeout ddp_backend
    ddp_broadcast_buffers local_rank debug skip_memory_metrics include_* torch_compile_backend neftune_noise_alpha
    torch_empty_cache_steps average_tokens_across_devices batch_eval_metrics length_column_name use_cache
    restore_callback_states_from_checkpoint bf16_full_eval fp16_full_eval trackio_* project enable_jit_checkpoint
    accelerator_config.split_batches accelerator_config.dispatch_batches accelerator_config.even_batches
    accelerator_config.use_seedable_sampler accelerator_config.non_blocking past_index jit_mode_eval
    {fsdp_section.IRRELEVANT} {_DS_IRRELEVANT}
"""  # fmt: skip

IRRELEVANT = f"""
    dataset* data_path data_args* train_file validation_file validation_split_percentage preprocessing_* overwrite_cache
    tokenizer_* use_fast_tokenizer model_revision model_type trust_remote_code cache_dir token max_train_samples max_eval_samples
    streaming lora_alpha lora_dropout lora_task_type use_rslora bnb_4bit_* use_bnb_nested_quant chat_template_path eos_token
    lora_bias completion_only_loss assistant_only_loss config_file main_process_port master_* rdzv_* node_rank machine_rank
    launcher.* low_cpu_mem_usage config_name lazy_preprocess model_init_kwargs* text_column response_template
    {TRAINER_IRRELEVANT}
"""  # fmt: skip

RENAMED = {
    "max_seq_length": "max_length",
    "max_seq_len": "max_length",
    "block_size": "max_length",
    "model_max_length": "max_length",
    "torch_dtype": "dtype",
    "model_id": "model_name_or_path",
    "model_name": "model_name_or_path",
    "use_liger": "use_liger_kernel",
    "lora_rank": "lora_r",
    "per_gpu_train_batch_size": "per_device_train_batch_size",
}
"""Of older versions and of well-known scripts; max_seq_length became max_length in TRL."""


def recognised(flat: Flat) -> int:
    """Return how many keys only TrainingArguments have."""
    own = {"per_device_train_batch_size", "num_train_epochs", "lr_scheduler_type", "logging_steps", "save_strategy",
           "gradient_checkpointing", "optim", "model_name_or_path", "fsdp_config", "per_gpu_train_batch_size"}  # fmt: skip
    names = {key.partition(".")[0].replace("-", "_") for key in flat}
    return len(own & names)


def prepared(flat: Flat) -> Flat:
    """Return the values with FSDP's keys under one name, and a command line's with underscores."""
    return fsdp_section.without_prefix({key.replace("-", "_"): value for key, value in flat.items()})


def settle(fields: Fields, flat: Flat) -> Fields:
    """Return fields of OwnSetup."""
    unclear: list[NotUnderstood] = []
    found = trainer_fields(fields, flat, unclear)
    found["devices"] = devices_of(fields)
    if str(fields.get("_dtype")).lower() in DTYPES and DTYPES[str(fields["_dtype"]).lower()] == "bf16":
        found["states"] = "bf16"
    if fields.get("_attention"):
        found["attention"] = attention_of("attn_implementation", fields["_attention"], unclear)
    if fields.get("_peft") or fields["_4bit"] or fields["_8bit"] or "lora_r" in flat:
        found["adapters"] = Adapters(
            rank=fields["_rank"],
            targets=targets_of(fields.get("_modules")),
            base="nf4" if fields["_4bit"] else "int8" if fields["_8bit"] else "bf16",
            dora=bool(fields.get("_dora")),
        )
        found["states"] = "fp32"
    return {**found, "not_understood": unclear}


def devices_of(fields: Fields) -> int | None:
    """Return the devices that a launcher's options give; None without them."""
    nodes = fields.get("_nodes") or fields.get("_nodes_") or 1
    per_node = fields.get("_per_node") or fields.get("_gpus")
    return fields.get("_processes") or (per_node * nodes if per_node else None)


def trainer_fields(fields: Fields, flat: Flat, unclear: list[NotUnderstood]) -> Fields:
    """Return fields of OwnSetup from TrainingArguments."""
    found = {name: value for name, value in fields.items() if not name.startswith("_")}
    if fields["_bf16"] and fields["_fp16"]:
        raise ValueError("bf16 and fp16 are both true; TrainingArguments take one of them")
    found["precision"] = "bf16" if fields["_bf16"] else "fp16" if fields["_fp16"] else "fp32"
    found |= fsdp_section.section_fields(fields, 2, unclear)
    if any(key.startswith("deepspeed.") for key in flat):
        section = deepspeed.own_section(fields)
        found |= deepspeed.section_fields(section, unclear)
        if section.get("_bf16") or section.get("_fp16"):
            found["precision"] = "bf16" if section.get("_bf16") else "fp16"
    if "optimizer" not in found or "optim" in flat:
        found["optimizer"] = optimizer_of("optim", str(fields["_optimizer"]), unclear)
    found["optimizer_impl"] = implementation_of(str(fields["_optimizer"]))
    recompute = fields["_recompute"] or fields.get("_recompute_")
    found["recompute"] = "full" if recompute else found.get("recompute", "none")
    found["fused_loss"] = fields["_liger"]
    replicas = fields.get("_replicas") or 1
    if fields.get("_shard"):
        found["dp"] = fields["_shard"] * replicas
        found["replicas"] = replicas if fields["_shard"] > 1 else 1
    return found


def written(setup: OwnSetup) -> Flat:
    """Return TrainingArguments of a set-up; raises ValueError where they cannot express it."""
    flat = trainer_written(setup)
    flat["model_name_or_path"] = setup.model_name
    flat["max_length"] = setup.seq_len
    flat["attn_implementation"] = "eager" if setup.attention == "explicit" else "flash_attention_2"
    if setup.states == "bf16":
        flat["dtype"] = "bfloat16"
    if setup.adapters is not None:
        flat["use_peft"] = True
        flat["lora_r"] = setup.adapters.rank
        flat["lora_target_modules"] = list(setup.adapters.targets) or ["all-linear"]
        flat["load_in_4bit"], flat["load_in_8bit"] = (
            setup.adapters.base == "nf4",
            setup.adapters.base == "int8",
        )
        flat["use_dora"] = setup.adapters.dora
    return flat


def trainer_written(setup: OwnSetup) -> dict[str, object]:
    """Return TrainingArguments' own keys of a set-up."""
    for name, value in (("pp", setup.pp), ("ep", setup.ep)):
        if value > 1:
            raise ValueError(f"TrainingArguments have no key for {name} {value}")
    if setup.precision not in ("bf16", "fp16", "fp32"):
        raise ValueError(f"TrainingArguments have no key for precision {setup.precision}")
    if "activations" in setup.offload:
        raise ValueError("TrainingArguments have no key for activations on the host")
    if setup.recompute == "selective":
        raise ValueError("TrainingArguments have no key for selective recomputation")
    fsdp_section.refuse_zero1(setup)
    steps = setup.gradient_accumulation_steps or (setup.micro_batches() if setup.global_batch_size else 1)
    flat: dict[str, object] = {
        "per_device_train_batch_size": setup.micro_batch_size,
        "gradient_accumulation_steps": steps,
        "optim": optimizer_written(setup),
        "bf16": setup.precision == "bf16",
        "fp16": setup.precision == "fp16",
        "gradient_checkpointing": setup.recompute == "full",
        "torch_compile": setup.compile,
        "use_liger_kernel": setup.fused_loss,
    }
    if setup.engine == "zero":
        flat |= {f"deepspeed.{key}": value for key, value in deepspeed.section_written(setup).items()}
    elif setup.engine in ("fsdp1", "fsdp2"):
        flat["fsdp"] = "full_shard auto_wrap" if setup.zero == 3 else "shard_grad_op auto_wrap"
        flat |= fsdp_section.section_written(setup)
        if setup.dp is not None:
            flat["parallelism_config.dp_shard_size"] = setup.dp // setup.replicas
            flat["parallelism_config.dp_replicate_size"] = setup.replicas
        flat["parallelism_config.tp_size"], flat["parallelism_config.cp_size"] = setup.tp, setup.cp
    return flat
