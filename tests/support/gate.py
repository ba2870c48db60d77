"""Which tests are slow, which are for `make long`, and in which order files are taken."""

from collections import Counter
from fnmatch import fnmatchcase

import pytest

STARTS = {
    "ranks, engines and networks": """
        test_context_parallel test_dataloader_loader test_dataloader_other_peers test_dataloader_peers
        test_dataloader_suite test_drain_gloo test_every_optimization test_expert_parallel test_fabric
        test_expert_tensor_parallel
        test_fsdp1 test_fsdp2 test_fsdp2_resharding test_further_meshes
        test_interconnect test_launcher test_memory_order
        test_mesh test_network test_network_lifetime test_offload test_overlap_training_step
        test_offload_activations test_offload_bytes test_offload_host test_offload_largest
        test_offload_losses test_offload_managed test_offload_swap_folder test_pipeline
        test_profiling_ranks test_ranks test_ray_executor test_ring_reduce_scatter test_slurm_executor
        test_overlap test_overlap_bad_input test_real_cluster test_routing_rules test_run_queue
        test_symmetric test_tensor_parallel
        test_ddp test_zero
    """,
    "compilers": """
        test_compiled_memory test_deepspeed_operators test_kernels test_kernels_float64 test_kernels_step
        test_portability_capture test_portability_engines test_portability_targets
        test_symmetric_compiled
        test_triton_attention test_triton_loss_and_optimizer test_triton_rowwise
    """,
    "real training steps, and simulations": """
        test_bf16_products test_checkpointing_policies test_congestion test_congestion_dcqcn
        test_account test_advise test_fabric_flows test_fake_step test_fit test_float8 test_host_optimizer
        test_huggingface test_huggingface_refusals test_layout_causes test_step_gains_suite test_fit_verdicts
        test_advise_page test_advise_page_browser
        test_layer_repetition test_layouts_suite test_leaf_spine_max_min test_leaf_spine_simulator
        test_llama_adapter
        test_config_fault test_dry_run_offload test_encoder_decoder test_limits_search test_lora
        test_losses_in_chunks test_memory_published test_mixture test_pipeline_mesh test_published_models
        test_real_configs test_reserved_memory test_room
        test_stack test_steady_micro_batches test_techniques test_offload_dry_run
        test_offload_memory_estimates
        test_optimizations test_optimizer_states test_own_layouts_answered test_precision_and_losses
        test_search test_simulated_cuda
        test_user_model
    """,
    "whole sweeps": """
        test_cgroup test_guides test_installed test_jobs test_report_bytes test_interleaved_groups test_main
        test_private_memory test_protocols test_reference test_resume test_runner test_template
        test_worker
    """,
}
"""Files whose tests are all slow, by what they start; `make check` leaves them out."""


FRESH = ("test_dataloader_other_peers",)
"""Files whose tests come before all others, in a worker in which nothing else has run: loaders fork it, and
their processes have ended at once in one that had run other tests."""

LONG = """
    test_account.py::test_fsdp2_takes_what_the_dry_run_of_the_same_step_takes[[]{'micro*
    test_account.py::test_fsdp2_takes_what_the_dry_run_of_the_same_step_takes[[]{'vocab*
    test_advise.py::test_a_device_that_was_not_compared_is_not_known[[]mi300x*
    test_advise.py::test_a_device_that_was_not_compared_is_not_known[[]t4*
    test_advise_page.py::test_a_mistake_in_the_command_is_one_line_and_exit_status_2[[]*serve=0*device=t4*
    test_answer.py::test_another_link_is_no_answer_and_a_control_at_the_same_speed_is_one
    test_at_once.py::test_equal_questions_share_their_answer_and_others_do_not_wait
    test_bf16_products.py::*[[]without *
    test_bf16_products.py::test_every_bf16_step_allocates_the_same_and_leaves_no_product_slow
    test_command_techniques.py::test_it_runs_as_the_yaml_with_the_same_techniques_does_and_not_twice
    test_compare.py::test_at_the_margin_itself_one_in_a_hundred_fails_at_most*
    test_compiled_memory.py::test_as_measured[[]autocast]
    test_compiled_memory.py::test_as_measured[[]full checkpointing]
    test_config.py::test_every_name_that_a_former_name_is_answered_with_is_a_key_of_some_suite
    test_congestion.py::test_the_harness_runs_it
    test_congestion_dcqcn.py::test_long_flows_find_about_the_marking_of_the_fixed_point
    test_dataloader_loader.py::test_a_source_that_hangs_is_named
    test_dataloader_loader.py::test_no_document_is_lost_or_doubled_when_any_actor_is_killed[[]1]
    test_dataloader_loader.py::test_source_loaders_and_shadows_that_are_gone_for_good_are_started_again
    test_dataloader_other_peers.py::*[[]ray_data-jsonl]
    test_dataloader_other_peers.py::test_an_epoch_has_each_document_once[[]ray_data-parquet]
    test_dataloader_other_peers.py::test_an_unreadable_file_is_named[[]ray_data-parquet]
    test_dataloader_other_peers.py::test_an_unreadable_file_is_named[[]spdl-parquet]
    test_dataloader_other_peers.py::test_closing_leaves_nothing[[]ray_data-parquet]
    test_dataloader_other_peers.py::test_epochs_repeat_and_the_mixture_is_kept[[]ray_data-parquet]
    test_dataloader_other_peers.py::test_ranks_of_a_group_have_slices_of_the_same_rows[[]ray_data-parquet]
    test_dataloader_other_peers.py::test_spdl_changes_weights_over_time_and_names_bad_documents
    test_dry_run_offload.py::test_few_layers_stand_for_all*
    test_dry_run_offload.py::test_without_prefetching_activations_do_not_grow_with_layers
    test_every_optimization.py::*-factorial.*_*]
    test_every_optimization.py::*clock_speed|*-alternating.*]
    test_every_optimization.py::*fabric|*-e_ecmp.split_*]
    test_every_optimization.py::*fabric|*-qp_scaling.4_pairs]
    test_every_optimization.py::*fsdp2_two_a_node-[!bf]*
    test_every_optimization.py::*fsdp2_two_a_node-gradient_accumulation]
    test_every_optimization.py::*interconnect|fsdp2_two_a_node-baseline]
    test_every_optimization.py::*interconnect|fsdp2_two_a_node-bf16_reduce]
    test_every_optimization.py::*interconnect|zero3-*
    test_every_optimization.py::*kernels|linear_cross_entropy_32k-torch_compile]
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
    test_every_optimization.py::*memory|gpt_5m-context_parallel]
    test_every_optimization.py::*memory|gpt_5m-mixed_accumulated]
    test_every_optimization.py::*memory|gpt_5m-mixed_checkpointed]
    test_every_optimization.py::*memory|gpt_5m-mixed_checkpointed_accumulated]
    test_every_optimization.py::*memory|gpt_5m-mixed_precision.*_grads]
    test_every_optimization.py::*memory|gpt_5m-tensor_parallel]
    test_every_optimization.py::*memory|gpt_5m-zero3]
    test_every_optimization.py::*memory|gpt_5m-zero[12]]
    test_every_optimization.py::*offload|llama_5m-activation_offload.async]
    test_every_optimization.py::*overlap|training_step-*
    test_every_optimization.py::*portability|*-any_length.*
    test_every_optimization.py::*portability|softmax-inductor]
    test_every_optimization.py::*profiling|ddp_2_ranks-launch_sleep]
    test_every_optimization.py::*profiling|fsdp2_2_ranks_linked-baseline]
    test_every_optimization.py::*step_30m_512-torch_compile]
    test_every_optimization.py::*train_dp2-disaggregated_balanced]
    test_expert_parallel.py::test_fsdp2_gathers_the_experts_of_a_rank_alone
    test_expert_parallel.py::test_layers_are_repeated
    test_expert_parallel.py::test_the_dry_run_equals_what_real_ranks_take_whose_routing_is_even*
    test_expert_tensor_parallel.py::test_layers_are_repeated
    test_fit.py::test_a_micro_batch_that_is_too_large_is_scaled_down
    test_fit.py::test_an_old_device_has_no_fused_attention_in_bf16
    test_fit.py::test_flash_attention_is_left_out_where_the_model_has_none
    test_fit.py::test_the_largest_is_that_of_trying_every_one
    test_fit.py::test_what_decides_is_named[[]changes1*
    test_fit.py::test_what_ifs_predict_what_their_own_search_finds
    test_fit_verdicts.py::test_a_for_loop_over_parameters_does_not_fit_under_zero_2
    test_fit_verdicts.py::test_reserved_bytes_decide_in_the_first_line
    test_fit_verdicts.py::test_states_on_the_host_need_its_memory
    test_float8.py::test_a_dry_run_of_a_rank_is_as_measured
    test_float8.py::test_its_tolerance_is_that_of_a_single_sequence_too
    test_fsdp1.py::test_a_dry_run_of_few_layers_is_as_measured_of_more
    test_fsdp2.py::test_gpt3_over_88_ranks_is_traced
    test_fsdp2.py::test_repeated_layers_equal_a_full_trace
    test_fsdp2_resharding.py::test_repeated_layers_equal_a_full_trace*
    test_further_meshes.py::test_the_only_rank_of_a_group_is_right_too
    test_guides.py::test_both_pass_the_tests_that_look_at_every_suite
    test_host_optimizer.py::test_the_harness_runs_it
    test_huggingface.py::test_repeated_layers_equal_a_full_trace[[]mixtral]
    test_interconnect.py::test_a_step_is_timed_behind_its_link[[]zero3]
    test_launcher.py::test_a_relay_that_is_killed_takes_its_rank_along
    test_launcher.py::test_one_that_dies_is_reported_with_what_it_printed
    test_launcher.py::test_they_answer_as_a_pools_own_and_a_closed_pool_ends_them_before_any_heartbeat_is_missed
    test_launcher.py::test_torchrun_starts_a_sweep_over_the_machines_own_network
    test_layer_repetition.py::test_built_as_traced[[]a mesh of ranks, on CUDA]
    test_layer_repetition.py::test_built_as_traced[[]dropout, two micro-batches]
    test_layer_repetition.py::test_built_as_traced[[]gradients pile up]
    test_layer_repetition.py::test_built_as_traced[[]shared sequences, on CUDA]
    test_llama_adapter.py::test_a_dry_run_that_repeats_layers_is_as_measured
    test_memory_published.py::test_the_page_shows_what_was_published_by_whom_and_why_there_is_no_prediction
    test_mesh.py::test_the_only_rank_of_a_group_is_right_too
    test_models_that_read_values.py::*[[]nllb-moe]
    test_models_that_read_values.py::*[[]t5gemma2]
    test_offload.py::test_cells_through_the_harness
    test_offload.py::test_files_of_ranks_that_were_killed_go_too
    test_offload_bytes.py::test_peaks_fall_as_the_formulas_do
    test_offload_dry_run.py::test_fewer_layers_say_what_a_full_trace_does*
    test_offload_largest.py::test_a_model_whose_states_exceed_the_budget_does_not_train_and_one_within_does_on*
    test_offload_largest.py::test_the_largest_on_real_ranks_is_what_its_states_allow
    test_offload_managed.py::test_without_a_bound_nothing_is_limited_and_no_group_is_left_by_a_rank_that_was*
    test_offload_swap_folder.py::test_what_a_kill_left_is_cleared_by_the_next_and_what_lives_is_not
    test_optimizer_states.py::test_parameters_of_several_slices_are_as_measured
    test_overlap_training_step.py::*[[]4-*
    test_own_layouts_answered.py::test_the_adviser_compares_the_files_layout_and_a_log_with_others
    test_pipeline.py::test_layers_of_a_stage_are_repeated[[]interleaved]
    test_pipeline.py::test_the_rank_that_takes_the_most_is_reported[[]64-0]
    test_pipeline_mesh.py::test_layers_of_a_stage_are_repeated*
    test_pipeline_mesh.py::test_the_only_rank_of_a_group_is_right_too*
    test_portability_capture.py::test_an_embeddings_gradient_as_a_product_is_the_scattered_one
    test_portability_engines.py::test_an_engine_computes_a_training_step_as_float64_does[[]inductor]
    test_portability_engines.py::test_one_compilation_serves_any_length[[]inductor]
    test_portability_engines.py::test_one_compilation_serves_any_length[[]openvino]
    test_preset.py::test_an_h100_settles_its_own_curves_and_an_a100_others
    test_preset.py::test_what_needs_several_gpus_is_left_out_on_one_by_name
    test_profiling_ranks.py::test_a_trace_of_a_run_elsewhere_gets_the_same_breakdown
    test_published_models.py::test_a_norm_in_bf16_would_make_llama_2_with_lora_too_low
    test_published_models.py::test_the_dry_run_of_each_model_is_the_real_steps_peak[[]litgpt_2024_adapter*
    test_ray_executor.py::test_a_folder_that_nodes_do_not_see_is_one_line_and_exit_status_2
    test_ray_executor.py::test_a_folder_that_one_node_of_two_does_not_see_ends_the_sweep
    test_ray_executor.py::test_a_ray_of_this_machine_ends_with_the_submitter_and_the_next_runs_the_rest
    test_ray_executor.py::test_a_search_over_models_clusters_and_layouts_runs_on_ray_as_here
    test_ray_executor.py::test_jobs_of_a_cluster_go_on_without_the_submitter
    test_ray_executor.py::test_whatever_is_killed_each_cell_has_one_truthful_record
    test_real_configs.py::test_at_real_sizes_a_common_set_up_takes_less[[]deepseek-v3]
    test_repeated_weights.py::*[[]3--nf4]
    test_repeated_weights.py::*[[]adamw_8bit-512]
    test_reserved_memory.py::test_other_sizes_of_a_step_are_built_as_its_own_were[[]techniques1]
    test_room.py::test_the_needed_room_is_within_the_stated_range*
    test_slurm_executor.py::test_a_folder_that_nodes_do_not_see_is_named*
    test_slurm_executor.py::test_a_node_that_a_cell_on_two_nodes_loses_is_a_status_and_tried_again
    test_slurm_executor.py::test_a_time_limit_and_a_lost_node_are_statuses_and_tried_again
    test_slurm_executor.py::test_srun_starts_the_ranks_of_a_cell_on_two_nodes
    test_slurm_executor.py::test_what_the_cluster_refuses_is_one_line_and_leaves_no_job[[]settings[45]*
    test_slurm_executor.py::test_whatever_is_killed_each_cell_has_one_truthful_record
    test_technique_pairs.py::test_a_pair_is_right_and_measured_or_refused_as_the_record_has_it
    test_techniques.py::test_a_technique_keeps_its_contract[[]*-{?*}]
    test_techniques.py::test_a_technique_keeps_its_contract[[]float8-{}]
    test_triton_attention.py::test_every_kernel_compiles_for_every_target[[]bf16-gfx9*
    test_triton_attention.py::test_every_kernel_compiles_for_every_target[[]bf16-sm_100-*
    test_triton_attention.py::test_every_kernel_compiles_for_every_target[[]bf16-sm_80-*
    test_triton_attention.py::test_every_kernel_compiles_for_every_target[[]fp32-*
    test_user_model.py::test_few_layers_determine_the_rest_and_the_sharded_step_too
    test_zero.py::test_so_it_does_in_bf16_with_an_odd_number_of_parameters[[][12]]
    test_zero.py::test_the_only_rank_of_a_group_is_right_after_other_groups[[]zero2]
"""
"""What takes tens of seconds and adds little to shorter tests of the same file: another setting, another
kernel's target, one more way for a node or a submitter to be lost. `make long` runs these."""

SAMPLED = {
    2: """
        test_compare.py::test_identical_runs_of_real_processes_do_not_fail
        test_ddp.py::test_the_dry_run_has_the_buckets
        test_formulas.py::test_formulas_are_compared_where_a_step_holds_the_bytes_that_they_count
        test_fsdp1.py::test_losses_on_ranks_are_plain_pytorchs
        test_fsdp2.py::test_so_it_does_when_fsdp2_is_set_up_otherwise
        test_interconnect.py::test_a_step_is_timed_behind_its_link
        test_live_bytes.py::test_the_peak_is_among_the_points_and_in_the_viewers_file
        test_offload_dry_run.py::test_ddp_as_measured_with_ddp_itself
        test_offload_dry_run.py::test_fsdp2_as_measured_of_one_of_many_ranks
        test_optimizer_states.py::test_a_dry_run_of_a_rank_is_as_measured
        test_overlap_training_step.py::test_losses_and_gradients_are_those_of_the_full_model
        test_own_round_trip.py::test_what_is_written_is_read_back
        test_pipeline.py::test_real_ranks_see_the_losses_and_gradients_of_one_device
        test_published_models.py::test_as_many_parameters_are_trained_as_litgpt_printed
        test_ranks.py::test_a_rank_that_is_killed_in_a_collective_is_named_and_not_those_that_lost_it
        test_ranks.py::test_a_rank_that_is_lost_with_its_node_is_no_failure_of_the_cell
        test_repeated_weights.py::test_a_slice_of_each_size_stands_for_all
        test_slurm_executor.py::test_what_the_cluster_refuses_is_one_line_and_leaves_no_job
    """,
    3: """
        test_answer.py::test_the_end_of_a_sweep_fits_a_screen
        test_checkpointing_policies.py::test_a_dry_run_is_as_measured
        test_congestion.py::test_half_the_step_changes_little
        test_dataloader_peers.py::test_each_document_is_loaded_once_per_epoch_bit_for_bit_and_no_p*
        test_expert_tensor_parallel.py::test_the_dry_run_equals_what_real_ranks_take_whose_routing_is_even
        test_fit.py::test_a_first_step_made_from_the_second_reserves_what_a_traced_one_does
        test_huggingface.py::test_a_config_passes_the_check_of_its_step
        test_kernels_step.py::test_each_technique_of_one_process_passes_the_check_as_its_contract_states
        test_layer_repetition.py::test_built_as_traced
        test_llama_adapter.py::test_a_dry_run_of_a_rank_is_as_measured
        test_lora.py::test_a_dry_run_of_a_rank_is_as_measured
        test_memory_order.py::test_a_kernel_has_no_race_and_no_uncertain_wait
        test_models_that_read_values.py::test_what_reads_values_takes_the_memory_that_it_takes
        test_offload_activations.py::test_gradients_are_the_plain_ones_to_the_bit
        test_offload_bytes.py::test_bytes_on_the_host_are_those_by_hand
        test_offload_losses.py::test_every_engine_follows_the_scale_of_gradients
        test_optimizations.py::test_wrong_gradients_are_caught
        test_optimizer_states.py::test_a_dry_run_is_as_measured
        test_overlap_bad_input.py::test_a_rank_killed_in_the_middle_of_a_kernels_put_is_named_by_w*
        test_own_models.py::test_every_shape_has_the_parameters_of_transformers_own_model
        test_pipeline_mesh.py::test_real_ranks_see_the_losses_and_gradients_of_one_device
        test_portability_capture.py::test_one_wrong_tensor_of_any_kind_is_caught
        test_real_configs.py::test_at_real_sizes_a_common_set_up_takes_less
        test_reference.py::test_whatever_a_killed_sweep_lacks_its_report_has_an_answer
        test_symmetric.py::test_a_rank_that_never_signals_is_named_with_the_signal_and_the_values
        test_techniques.py::test_a_combination_keeps_the_loosest_contract
        test_triton_rowwise.py::test_every_kernel_compiles_for_every_target_without_spills
        test_user_model.py::test_the_dry_run_of_the_example_is_the_real_steps_peak
    """,
    4: """
        test_account.py::test_fsdp2_takes_what_the_dry_run_of_the_same_step_takes
        test_context_parallel.py::test_fused_attention_on_cuda_makes_no_mask
        test_context_parallel.py::test_real_ranks_see_the_losses_and_gradients_of_full_sequences_o*
        test_context_parallel.py::test_the_dry_run_equals_what_real_tensors_take
        test_expert_parallel.py::test_real_ranks_with_uneven_routing_see_the_losses_and_gradients_of*
        test_expert_tensor_parallel.py::test_the_only_rank_of_a_group_is_right_too
        test_fabric.py::test_packets_go_where_the_kernel_says
        test_huggingface.py::test_optimizations_hold_for_these_models_too
        test_kernels.py::test_a_variant_gives_what_float64_gives_where_it_is_planned_and_is_unavai*
        test_mixture.py::test_a_dry_run_with_equal_shares_is_what_a_real_routing_takes_on_one_device
        test_pipeline_mesh.py::test_the_dry_run_of_both_ends_equals_what_real_tensors_take
        test_published_models.py::test_the_dry_run_of_stablelm_is_the_real_steps_peak
        test_repeated_weights.py::test_the_timeline_is_that_of_running_each_widening
        test_steady_micro_batches.py::test_further_micro_batches_take_what_the_second_does
        test_tensor_parallel.py::test_real_ranks_see_the_losses_of_one_device
        test_tensor_parallel.py::test_the_dry_run_equals_what_real_tensors_take
    """,
    5: """
        test_fake_step.py::test_as_measured
        test_llama_adapter.py::test_a_dry_run_is_as_measured
        test_losses_in_chunks.py::test_a_dry_run_is_as_measured
        test_offload_losses.py::test_mixed_precision_rounds_and_no_more
        test_symmetric.py::test_a_kernel_gives_what_pytorch_gives_whichever_rank_is_late
        test_symmetric_compiled.py::test_each_wait_acquires_each_notify_releases_and_nothing_spills
    """,
    6: """
        test_dry_run_offload.py::test_the_dry_run_equals_what_the_allocator_sees
        test_float8.py::test_a_dry_run_is_as_measured
        test_fsdp1.py::test_a_dry_run_is_as_measured
        test_fsdp2.py::test_the_dry_run_equals_what_real_tensors_take
        test_fsdp2_resharding.py::test_a_dry_run_is_as_measured
        test_kernels_config.py::test_each_technique_that_applies_trains_the_configs_own_model
        test_lora.py::test_a_dry_run_is_as_measured
        test_memory_published.py::test_a_row_is_described_or_names_the_technique_that_is_not_built
        test_zero.py::test_the_dry_run_equals_what_real_tensors_take
    """,
    8: """
        test_encoder_decoder.py::test_a_step_is_answered
        test_expert_parallel.py::test_the_dry_run_equals_what_real_tensors_take
        test_expert_tensor_parallel.py::test_real_ranks_with_uneven_routing_see_the_losses_and_gradients_of*
        test_expert_tensor_parallel.py::test_the_dry_run_equals_what_real_tensors_take
        test_further_meshes.py::test_real_ranks_of_a_mesh_see_the_losses_and_gradients_of_one_device
        test_further_meshes.py::test_the_dry_run_of_a_rank_of_each_stage_equals_what_real_tensors_*
        test_memory_order.py::test_every_mutant_of_a_kernel_is_noticed
        test_memory_published.py::test_the_command_of_a_row_asks_for_the_same_step
        test_mesh.py::test_real_ranks_see_the_losses_and_gradients_of_one_device
        test_published_models.py::test_the_dry_run_of_each_model_is_the_real_steps_peak
    """,
    9: """
        test_huggingface.py::test_fake_step_is_what_is_measured
        test_optimizations.py::test_a_variant_gives_what_the_baseline_gives
    """,
    12: """
        test_account.py::test_so_it_is_with_experts_and_ranks_that_share_each_layer
        test_memory_published.py::test_the_command_of_megatrons_rows_gives_the_same_layout_without*
        test_mesh.py::test_the_dry_run_equals_what_real_tensors_take
        test_offload_bytes.py::test_bytes_moved_are_those_by_hand
        test_real_configs.py::test_a_small_one_takes_what_is_predicted
    """,
}
"""Tests of which `make test` runs the first of every so many parameter sets, and `make long` the others: each
set goes through the same code, with another step or kernel."""


def mark(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests of these files and lists, and put files with slow tests first.

    Workers take files in this order (--no-loadscope-reorder), so none gets a slow one at the end.
    """
    long = [line.strip() for line in LONG.strip().splitlines()]
    slow = {file for files in STARTS.values() for file in files.split()}
    unused = set(long)
    every = {pattern: number for number, patterns in SAMPLED.items() for pattern in patterns.split()}
    sets = Counter[str]()
    for item in items:
        if item.path.stem in slow:
            item.add_marker(pytest.mark.slow)
        name = f"{item.path.name}::{item.name}"
        test = name.partition("[")[0]
        number = next((number for pattern, number in every.items() if fnmatchcase(test, pattern)), 1)
        sampled_out = sets[test] % number
        sets[test] += 1
        matching = {pattern for pattern in long if fnmatchcase(name, pattern)}
        unused -= matching
        if sampled_out or matching:
            item.add_marker(pytest.mark.long)
    files = {item.path.name for item in items}
    unused |= {pattern for pattern in every if not any(fnmatchcase(test, pattern) for test in sets)}
    stale = sorted(pattern for pattern in unused if pattern.partition("::")[0] in files)
    if stale and config.args_source is pytest.Config.ArgsSource.TESTPATHS:
        raise pytest.UsageError(f"tests/support/gate.py: no test is called {', '.join(stale)}")
    first = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (item.path.stem not in FRESH, item.path not in first))
