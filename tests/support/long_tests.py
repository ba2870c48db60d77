"""Tests for `make long`: by name, and those of which `make test` runs every so many parameter sets."""

LONG = """
    test_account.py::test_fsdp2_takes_what_the_dry_run_of_the_same_step_takes[[]{'micro*
    test_account.py::test_fsdp2_takes_what_the_dry_run_of_the_same_step_takes[[]{'vocab*
    test_bf16_products.py::*[[]without *
    test_bf16_products.py::test_every_bf16_step_allocates_the_same_and_leaves_no_product_slow
    test_compare.py::test_at_the_margin_itself_one_in_a_hundred_fails_at_most*
    test_dataloader_loader.py::test_a_source_that_hangs_is_named
    test_dataloader_loader.py::test_a_state_continues_bit_for_bit_when_any_actor_is_killed[[]1]
    test_dataloader_loader.py::test_source_loaders_and_shadows_that_are_gone_for_good_are_started_again
    test_dataloader_peers.py::*[[]ray_data-*]
    test_dataloader_peers.py::test_an_epoch_has_each_document_once[[]grain_iter_mix-*]
    test_every_optimization.py::*-factorial.*_*]
    test_every_optimization.py::*clock_speed|*-alternating.*]
    test_every_optimization.py::*fabric|*-e_ecmp.split_*]
    test_every_optimization.py::*fsdp2_two_a_node-[!bf]*
    test_every_optimization.py::*fsdp2_two_a_node-gradient_accumulation]
    test_every_optimization.py::*interconnect|ddp-gradient_accumulation]
    test_every_optimization.py::*interconnect|fsdp2_two_a_node-baseline]
    test_every_optimization.py::*interconnect|fsdp2_two_a_node-bf16_reduce]
    test_every_optimization.py::*interconnect|zero3-*
    test_every_optimization.py::*kernels|linear_cross_entropy_32k-torch_compile]
    test_every_optimization.py::*kernels|linear_gelu_768*-compile_gemm_template]
    test_every_optimization.py::*kernels|softmax_small-torch_compile]
    test_every_optimization.py::*llama_5m-partial_offload.*]
    test_every_optimization.py::*llama_5m-zero3_offload_params]
    test_every_optimization.py::*llama_5m-zero[123]]
    test_every_optimization.py::*llama_5m-zero[123]_offload]
    test_every_optimization.py::*llama_5m-zero_infinity]
    test_every_optimization.py::*memory_parquet_306_8-disaggregated]
    test_every_optimization.py::*memory_parquet_306_8-disaggregated_autoscaled]
    test_every_optimization.py::*memory_parquet_306_8-grain_*_mix]
    test_every_optimization.py::*memory_parquet_306_8-ray_data]
    test_every_optimization.py::*memory_parquet_306_8-spdl]
    test_every_optimization.py::*memory|*_mixed_*]
    test_every_optimization.py::*memory|gpt_5m-activation_checkpointing.full]
    test_every_optimization.py::*memory|gpt_5m-mixed_flash]
    test_every_optimization.py::*memory|llama_12m-baseline]
    test_every_optimization.py::*memory|moe_14m-baseline]
    test_every_optimization.py::*memory|gpt_5m-context_parallel]
    test_every_optimization.py::*memory|gpt_5m-mixed_accumulated]
    test_every_optimization.py::*memory|gpt_5m-mixed_checkpointed]
    test_every_optimization.py::*memory|gpt_5m-mixed_checkpointed_accumulated]
    test_every_optimization.py::*memory|gpt_5m-mixed_precision.*_grads]
    test_every_optimization.py::*memory|gpt_5m-tensor_parallel]
    test_every_optimization.py::*memory|gpt_5m-zero3]
    test_every_optimization.py::*memory|gpt_5m-zero[12]]
    test_every_optimization.py::*offload|llama_5m-activation_checkpointing]
    test_every_optimization.py::*offload|llama_5m-activation_offload.async]
    test_every_optimization.py::*offload|llama_5m-fsdp2]
    test_every_optimization.py::*offload|llama_5m-host_update]
    test_every_optimization.py::*overlap|a[gl]*-baseline]
    test_every_optimization.py::*overlap|dispatch_*-baseline]
    test_every_optimization.py::*overlap|training_step-*
    test_every_optimization.py::*portability|*-any_length.*
    test_every_optimization.py::*portability|softmax-inductor]
    test_every_optimization.py::*profiling|ddp_2_ranks-launch_sleep]
    test_every_optimization.py::*profiling|fsdp2_2_ranks_linked-baseline]
    test_every_optimization.py::*step_30m_512-compile_sdpa]
    test_every_optimization.py::*step_30m_512-torch_compile]
    test_every_optimization.py::*train_dp2-disaggregated_balanced]
    test_fake_step.py::*[[]long*
    test_fit_answers.py::test_a_file_goes_to_the_first_line_through_few_of_ours
    test_fit_answers.py::test_what_ifs_predict_what_their_own_question_finds
    test_guides.py::test_both_pass_*
    test_huggingface.py::test_unusual_architectures_take_the_memory_that_they_take[[]nllb-moe]
    test_huggingface.py::test_unusual_architectures_take_the_memory_that_they_take[[]t5gemma2]
    test_interconnect.py::test_a_step_is_timed_behind_its_link[[]zero3]
    test_launcher.py::test_a_relay_that_is_killed_takes_its_rank_along
    test_launcher.py::test_torchrun_starts_a_sweep_over_the_machines_own_network
    test_layer_repetition.py::test_built_as_traced[[]a mesh of ranks, on CUDA]
    test_layer_repetition.py::test_built_as_traced[[]gradients pile up]
    test_offload.py::test_files_of_ranks_that_were_killed_go_too
    test_offload.py::test_what_a_kill_left_is_cleared_by_the_next_and_what_lives_is_not
    test_offload_largest.py::test_a_model_whose_states_exceed_the_budget_does_not_train_and_one_within_does_on*
    test_offload_managed.py::test_without_a_bound_nothing_is_limited_and_no_group_is_left_by_a_rank_that_was*
    test_overlap_training_step.py::*[[]4-*
    test_pipeline.py::test_layers_of_a_stage_are_repeated[[]interleaved*
    test_pipeline.py::test_the_rank_that_takes_the_most_is_reported[[]64-0]
    test_published_models.py::test_the_dry_run_of_each_model_is_the_real_steps_peak[[]litgpt_2024_adapter*
    test_ranks_of_a_step.py::*[[]long*
    test_ray_executor.py::test_a_ray_of_this_machine_ends_with_the_submitter_and_the_next_runs_the_rest
    test_ray_executor.py::test_whatever_is_killed_each_cell_has_one_truthful_record
    test_room.py::test_the_needed_room_is_within_the_stated_range*
    test_slurm_executor.py::test_a_node_that_a_cell_on_two_nodes_loses_is_a_status_and_tried_again
    test_slurm_executor.py::test_a_time_limit_and_a_lost_node_are_statuses_and_tried_again
    test_slurm_executor.py::test_srun_starts_the_ranks_of_a_cell_on_two_nodes
    test_slurm_executor.py::test_what_the_cluster_refuses_is_one_line_and_leaves_no_job[[]settings[23]*
    test_slurm_executor.py::test_whatever_is_killed_each_cell_has_one_truthful_record
    test_technique_pairs.py::test_a_pair_is_right_and_measured_or_refused_as_the_record_has_it
    test_techniques.py::*[[]long*
    test_techniques.py::test_a_technique_keeps_its_contract[[]*-{?*}]
    test_techniques.py::test_a_technique_keeps_its_contract[[]float8-{}]
    test_triton_attention.py::test_every_kernel_compiles_for_every_target[[]bf16-gfx9*
    test_triton_attention.py::test_every_kernel_compiles_for_every_target[[]bf16-sm_100-*
    test_triton_attention.py::test_every_kernel_compiles_for_every_target[[]bf16-sm_80-*
    test_triton_attention.py::test_every_kernel_compiles_for_every_target[[]fp32-*
"""
"""What takes tens of seconds and adds little to shorter tests of the same file: another setting, another
kernel's target, one more way for a node or a submitter to be lost. `make long` runs these."""

SAMPLED = {
    2: """
        test_slurm_executor.py::test_what_the_cluster_refuses_is_one_line_and_leaves_no_job
        test_compare.py::test_identical_runs_of_real_processes_do_not_fail
        test_pipeline.py::test_a_rank_has_a_buffer_for_each_micro_batch
        test_optimizations.py::test_wrong_gradients_are_caught
        test_fake_step.py::test_a_slice_of_each_size_stands_for_all
        test_formulas.py::test_formulas_are_compared_where_a_step_holds_the_bytes_that_they_count
        test_interconnect.py::test_a_step_is_timed_behind_its_link
        test_reserved_memory.py::test_the_peak_is_among_the_points_and_in_the_viewers_file
        test_overlap_training_step.py::test_losses_and_gradients_are_those_of_the_full_model
        test_published_models.py::test_as_many_parameters_are_trained_as_litgpt_printed
    """,
    3: """
        test_memory_order.py::test_a_kernel_has_no_race_and_no_uncertain_wait
        test_triton_rowwise.py::test_every_kernel_compiles_for_every_target_without_spills
        test_steady_micro_batches.py::test_further_micro_batches_take_what_the_second_does
        test_layer_repetition.py::test_built_as_traced
        test_offload_losses.py::test_bytes_moved_and_held_are_those_by_hand
        test_offload_losses.py::test_every_engine_follows_the_scale_of_gradients
        test_overlap.py::test_a_rank_killed_in_the_middle_of_a_kernels_put_is_named_by_w*
        test_reference.py::test_whatever_a_killed_sweep_lacks_its_report_has_an_answer
    """,
    4: """
        test_account.py::test_fsdp2_takes_what_the_dry_run_of_the_same_step_takes
        test_fabric.py::test_packets_go_where_the_kernel_says
        test_fake_step.py::test_as_measured
        test_huggingface.py::test_unusual_architectures_take_the_memory_that_they_take
        test_ranks_of_a_step.py::test_so_it_does_with_odd_sizes_and_other_techniques
        test_ranks_of_a_step.py::test_the_dry_run_of_a_rank_equals_what_real_tensors_take
        test_published_models.py::test_the_dry_run_of_stablelm_is_the_real_steps_peak
    """,
    5: """
        test_symmetric.py::test_a_kernel_gives_what_pytorch_gives_whichever_rank_is_late
        test_symmetric.py::test_each_wait_acquires_each_notify_releases_and_nothing_spills
        test_offload_losses.py::test_mixed_precision_rounds_and_no_more
    """,
    6: """
        test_kernels_config.py::test_each_technique_that_applies_trains_the_configs_own_model
    """,
    8: """
        test_memory_order.py::test_every_mutant_of_a_kernel_is_noticed
        test_published_models.py::test_the_dry_run_of_each_model_is_the_real_steps_peak
    """,
    9: """
        test_huggingface.py::test_fake_step_is_what_is_measured
    """,
    12: """
        test_account.py::test_so_it_is_with_experts_and_ranks_that_share_each_layer
    """,
    50: """
        test_hundred_recipes.py::test_quick_and_cached_dry_runs_equal_full_ones
    """,
}
"""Tests of which `make test` runs the first of every so many parameter sets, and `make long` the others: each
set goes through the same code, with another step or kernel."""
