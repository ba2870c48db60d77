"""The tables of Megatron-LM's arguments, which Megatron Bridge's and NeMo's files share; see megatron.py."""

from __future__ import annotations

from harness.config.own_files.table import Key

KEYS = {
    "num_layers": Key("_layers", "layers", None, "count"),
    "hidden_size": Key("_hidden", "hidden size", None, "count"),
    "ffn_hidden_size": Key("_ffn", "width of the MLP; 4 hidden sizes where it is left out", None, "count"),
    "num_attention_heads": Key("_heads", "heads", None, "count"),
    "num_query_groups": Key("_groups", "key-value heads", None, "count"),
    "group_query_attention": Key("_gqa", "heads share keys and values", None, "flag"),
    "kv_channels": Key("_head_dim", "size of one head", None, "count"),
    "max_position_embeddings": Key("_positions", "positions", None, "count"),
    "position_embedding_type": Key("_position_type", "learned_absolute or rope", None),
    "normalization": Key("_norm", "LayerNorm or RMSNorm", None),
    "swiglu": Key("_swiglu", "gated MLP", None, "flag"),
    "disable_bias_linear": Key("_no_bias", "linear layers without biases", None, "flag"),
    "add_qkv_bias": Key("_qkv_bias", "biases of queries, keys and values", None, "flag"),
    "qk_layernorm": Key("_qk_norm", "norms of queries and keys", None, "flag"),
    "untie_embeddings_and_output_weights": Key("_untied", "an output layer of its own", None, "flag"),
    "vocab_size": Key("_vocab", "entries of the vocabulary", None, "count"),
    "padded_vocab_size": Key("_padded_vocab", "entries with padding", None, "count"),
    "make_vocab_size_divisible_by": Key("_divisible", "padding of the vocabulary, times tp", 128, "count"),
    "tokenizer_type": Key("_tokenizer", "tokenizer", None),
    "tokenizer_model": Key("_tokenizer_model", "tokenizer's file or name", None, "any"),
    "vocab_file": Key("_vocab_file", "vocabulary's file", None, "any"),
    "num_experts": Key("_experts", "experts", None, "count"),
    "moe_router_topk": Key("_top_k", "experts per token", None, "count"),
    "moe_ffn_hidden_size": Key("_moe_ffn", "width of one expert", None, "count"),
    "moe_shared_expert_intermediate_size": Key("_shared", "width of the shared expert", None, "count"),
    "moe_layer_freq": Key("_moe_freq", "which layers have experts", None, "any"),
    "multi_latent_attention": Key("_mla", "multi-head latent attention", None, "flag"),
    "q_lora_rank": Key("_q_lora", "rank of compressed queries", None, "count"),
    "kv_lora_rank": Key("_kv_lora", "rank of compressed keys and values", 32, "count"),
    "qk_head_dim": Key("_qk_dim", "unrotated part of a head", 128, "count"),
    "qk_pos_emb_head_dim": Key("_rope_dim", "rotated part of a head", 64, "count"),
    "v_head_dim": Key("_v_dim", "size of one head's values", 128, "count"),
    "tensor_model_parallel_size": Key("tp", "tensor-parallel ranks", 1, "count"),
    "pipeline_model_parallel_size": Key("pp", "pipeline ranks", 1, "count"),
    "context_parallel_size": Key("cp", "context-parallel ranks", 1, "count"),
    "expert_model_parallel_size": Key("ep", "expert-parallel ranks", 1, "count"),
    "expert_tensor_parallel_size": Key("_etp", "tensor-parallel ranks of an expert; tp where it is left out", None, "count"),
    "num_layers_per_virtual_pipeline_stage": Key("_layers_per_virtual", "layers per stage of the interleaved schedule", None, "count"),
    "num_virtual_stages_per_pipeline_rank": Key("_virtual", "stages per pipeline rank", None, "count"),
    "sequence_parallel": Key("sequence_parallel", "norms and residuals are spread over tp", False, "flag"),
    "micro_batch_size": Key("micro_batch_size", "sequences per micro-batch", 1, "count"),
    "global_batch_size": Key("global_batch_size", "sequences per step", None, "count"),
    "seq_length": Key("seq_len", "tokens per sequence", None, "count"),
    "recompute_granularity": Key("_granularity", "selective or full", None),
    "recompute_activations": Key("_recompute_activations", "selective recomputation", None, "flag"),
    "checkpoint_activations": Key("_checkpoint_activations", "older name of full recomputation", None, "flag"),
    "recompute_method": Key("_method", "uniform or block", None),
    "recompute_num_layers": Key("_recompute_layers", "layers per unit, or per stage", None, "count"),
    "recompute_modules": Key("_modules", "what selective recomputation recomputes", None, "any"),
    "use_distributed_optimizer": Key("_distributed", "states are sharded over data-parallel ranks", False, "flag"),
    "use_megatron_fsdp": Key("_fsdp", "Megatron's FSDP", None, "flag"),
    "data_parallel_sharding_strategy": Key("_strategy", "what Megatron's FSDP shards", "no_shard"),
    "use_torch_fsdp2": Key("_torch_fsdp2", "torch's FSDP2", None, "flag"),
    "torch_fsdp2_no_reshard_after_forward": Key("_no_reshard", "parameters stay gathered until the backward pass", None, "flag"),
    "num_distributed_optimizer_instances": Key("_instances", "groups that each shard full states", None, "count"),
    "bf16": Key("_bf16", "bf16 over fp32 masters", False, "flag"),
    "fp16": Key("_fp16", "fp16 over fp32 masters", False, "flag"),
    "fp8_format": Key("_fp8", "products in float8", None),
    "fp8_recipe": Key("_fp8_recipe", "how float8 values are scaled", None),
    "fp4_format": Key("_fp4", "products in float4", None),
    "optimizer": Key("_optimizer", "optimizer", "adam"),
    "optimizer_cpu_offload": Key("_offload_states", "states on the host", None, "flag"),
    "cpu_offloading": Key("_offload_activations", "activations on the host, by Transformer Engine", None, "flag"),
    "transformer_impl": Key("_impl", "transformer_engine, or local layers", "transformer_engine"),
    "use_flash_attn": Key("_flash", "flash attention in local layers", None, "flag"),
    "merge_file": Key("_merge_file", "merges of GPT-2's tokenizer", None, "any"),
    "attention_backend": Key("_backend", "attention's kernel", "auto"),
    "launcher.nproc_per_node": Key("_per_node", "torchrun's processes per node", None, "count"),
    "launcher.nnodes": Key("_nodes", "torchrun's nodes", None, "count"),
    "world_size": Key("_world", "ranks", None, "count"),
}  # fmt: skip

MATTERS = {
    "use_precision_aware_optimizer": "states in other types",
    "main_grads_dtype": "the type of gradients' sums",
    "main_params_dtype": "the type of masters",
    "exp_avg*_dtype": "the type of Adam's moments",
    "fp8_param_gather": "parameters are kept and gathered in float8",
    "fp8_param": "parameters are kept and gathered in float8",
    "fp4_param*": "parameters are kept and gathered in float4",
    "keep_fp8_transpose_cache": "transposed float8 weights are kept",
    "reuse_grad_buf_for_mxfp8_param_ag": "gradients' buffer is used again",
    "grad_reduce_in_bf16": "gradients are summed and reduced in bf16",
    "optimizer_offload_fraction": "only part of the states is on the host",
    "fine_grained_activation_offloading": "some activations on the host",
    "cpu_offloading_*": "how much goes to the host",
    "distribute_saved_activations": "kept activations are shared over tensor-parallel ranks",
    "decoder_first_pipeline_num_layers": "layers per stage are listed by hand",
    "decoder_last_pipeline_num_layers": "layers per stage are listed by hand",
    "num_layers_in_*_pipeline_stage": "layers per stage are listed by hand",
    "pipeline_model_parallel_layout": "layers per stage are listed by hand",
    "account_for_*_in_pipeline_split": "embedding or loss count as a layer of the pipeline",
    "mtp_num_layers": "layers of multi-token prediction",
    "rampup_batch_size": "the batch grows",
    "step_batch_size_schedule": "the batch grows",
    "window_size": "attention sees a window alone",
    "window_attn_skip_freq": "attention sees a window alone",
    "squared_relu": "another activation",
    "quick_geglu": "another activation",
    "tp_comm_overlap*": "tensor parallelism overlaps with its collectives",
    "overlap_moe_expert_parallel_comm": "all-to-all overlaps with other micro-batches",
    "delay_wgrad_compute": "weights' gradients are delayed",
    "defer_embedding_wgrad_compute": "the output layer's gradient is delayed",
    "moe_token_dispatcher_type": "how tokens reach experts",
    "moe_enable_deepep": "another all-to-all (DeepEP)",
    "moe_flex_dispatcher_backend": "another all-to-all",
    "moe_expert_capacity_factor": "tokens beyond a capacity are dropped",
    "moe_pad_expert_input_to_capacity": "experts' inputs are padded",
    "moe_layer_recompute": "experts' layers are recomputed",
    "moe_use_legacy_grouped_gemm": "older grouped products",
    "cp_comm_type": "which context parallelism",
    "hierarchical_context_parallel_sizes": "context parallelism in two steps",
    "enable_cuda_graph": "CUDA graphs",
    "cuda_graph_*": "CUDA graphs",
    "external_cuda_graph": "CUDA graphs",
    "use_nccl_ub": "NCCL's registered buffers",
    "fsdp_double_buffer": "two buffers of FSDP",
    "outer_dp_sharding_strategy": "hybrid sharding",
    "enable_full_sharding_in_hsdp": "hybrid sharding",
    "tensor_parallel_num_weight_shards": "weights are sharded further",
    "fp16_lm_cross_entropy": "the loss in fp16",
    "cross_entropy_loss_fusion": "a fused loss that keeps logits",
    "cross_entropy_fusion_impl": "which fused loss",
    "fp32_residual_connection": "residuals in fp32",
    "hybrid_*": "layers of several kinds",
    "is_hybrid_model": "layers of several kinds",
    "mamba_*": "state-space layers",
    "linear_attention_freq": "linear attention",
    "heterogeneous_layers_*": "layers of several sizes",
    "spec": "other layers",
    "deterministic_mode": "deterministic kernels, some of them slower",
    "empty_unused_memory_level": "the allocator's cache is emptied in each step",
    "sft": "sequences of several lengths",
    "perform_rl_step": "generation during training",
    "yaml_cfg": "the rest stands in another file",
    "first_last_layers_bf16": "some layers stay in bf16",
    "gtp_*": "weights are gathered and dropped again",
}  # fmt: skip

IRRELEVANT = """
    train_* lr lr_* min_lr decoupled_* weight_decay* start_weight_decay end_weight_decay clip_grad adam_* muon_* sgd_momentum
    warmup init_method_* log_* timing_log_* tensorboard_* wandb_* one_logger_* no_one_logger app_tag_* eval_* save save_* load load_*
    ckpt_* dist_ckpt_* use_dist_ckpt use_checkpoint_* override_opt_* finetune no_load_* no_save_* exit_* data_* split valid_* test_*
    mock_data num_workers dataloader_* reset_* eod_* no_create_attention_mask_in_dataloader no_mmap_bin_files tokenizer_*
    vocab_extra_ids tiktoken_* seed manual_gc* profile* use_pytorch_profiler record_* nsys_* rotary_* use_rotary_* use_rope_scaling
    rope_* no_rope_* norm_epsilon layernorm_* apply_layernorm_1p attention_dropout hidden_dropout no_position_embedding
    use_mcore_models distributed_* overlap_* no_overlap_* ddp_* no_bias_*_fusion no_masked_softmax_fusion no_gradient_*
    no_persist_layer_norm bias_*_fusion apply_rope_fusion masked_softmax_fusion gradient_accumulation_fusion persist_layer_norm
    moe_router_* moe_aux_* moe_z_* moe_grouped_gemm moe_permute_fusion moe_per_layer_logging moe_shared_expert_overlap
    moe_shared_expert_gate moe_token_drop* moe_input_jitter_eps fp8_margin fp8_interval fp8_amax_* fp8_wgrad mtp_loss_scaling_factor
    mscale* beta_* attention_softmax_in_fp32 accumulate_allreduce_grads_in_fp32 apply_query_key_layer_scaling check_for_*
    no_check_* calculate_per_token_loss no_async_* async_* use_persistent_ckpt_worker use_cpu_initialization
    local_rank rank inprocess_* enable_ft_package calc_ft_timeouts result_rejected_* rerun_* error_injection_* ENV_VARS.* TEST_TYPE
    LAUNCHER METRICS* MODE NUM_* SKIP_* BEFORE_SCRIPT AFTER_SCRIPT launcher.* nproc_per_node nnodes node_rank master_* rdzv_*
    num_dataset_builder_threads initial_loss_scale loss_scale* min_loss_scale hysteresis enable_experimental enable_msc no_*
    skip_train straggler_* disable_straggler_* logging_level short_seq_prob mask_prob retro_* encoder_* decoder_seq_length bert_*
    non_persistent_* consumed_* make_vocab_* te_rng_tracker use_te_rng_tracker create_attention_mask* high_priority_stream_groups
    distribute_* kill_switch_* config_logger_dir legacy_tokenizer export_* trust_remote_code exclude_* cuda_device_max_connections
"""  # fmt: skip

RENAMED = {
    "model_parallel_size": "tensor_model_parallel_size",
    "virtual_pipeline_model_parallel_size": "num_virtual_stages_per_pipeline_rank",
    "use_custom_fsdp": "use_megatron_fsdp",
    "num_moe_experts": "num_experts",
    "fp8": "fp8_format",
    "fp4": "fp4_format",
    "batch_size": "micro_batch_size",
    "encoder_seq_length": "seq_length",
    "activations_checkpoint_granularity": "recompute_granularity",
    "activations_checkpoint_method": "recompute_method",
    "activations_checkpoint_num_layers": "recompute_num_layers",
    "encoder_num_layers": "num_layers",
}
"""Of older versions, of --yaml-cfg, and of Megatron Bridge and NeMo."""
