"""Which tests are slow, and in which order files are taken; long_tests.py has those for `make long`."""

from collections import Counter
from fnmatch import fnmatchcase

import pytest
from long_tests import LONG, SAMPLED

STARTS = {
    "ranks, engines and networks": """
        test_dataloader_loader test_dataloader_peers
        test_dataloader_suite test_drain_gloo test_every_optimization test_fabric
        test_fsdp2 test_interconnect test_launcher test_memory_order
        test_mesh test_network test_offload test_overlap_training_step
        test_offload_activations test_offload_host test_offload_largest
        test_offload_losses test_offload_managed test_pipeline test_ranks_of_a_step
        test_profiling_ranks test_ranks test_ray_executor test_ring_reduce_scatter test_slurm_executor
        test_overlap test_run_queue
        test_symmetric
        test_ddp
    """,
    "compilers": """
        test_compiled_memory test_deepspeed_operators test_deferred_compiler
        test_kernels test_kernels_float64 test_kernels_step
        test_portability_capture test_portability_engines
        test_triton_attention test_triton_loss_and_optimizer test_triton_rowwise
    """,
    "real training steps, and simulations": """
        test_bf16_products test_checkpointing_policies test_congestion test_cpu_quota
        test_account test_ask_page test_fabric_flows test_fake_step
        test_fit_answers test_float8 test_host_optimizer
        test_huggingface test_seconds_causes test_step_gains_suite
        test_light_imports
        test_layer_repetition test_layouts_suite test_leaf_spine_simulator
        test_llama_adapter
        test_config_fault test_limits_search test_lora
        test_losses_in_chunks test_memory_published test_model
        test_published_models
        test_real_configs test_reserved_memory test_room
        test_stack test_steady_micro_batches test_techniques
        test_offload_memory_estimates
        test_optimizations test_optimizer_states
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


FRESH = ("test_dataloader_peers",)
"""Files whose tests come before all others, in a worker in which nothing else has run: loaders fork it, and
their processes have ended at once in one that had run other tests."""


def mark(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests of these files and lists; slow files first, in whose order workers take them."""
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
        raise pytest.UsageError(f"tests/support/long_tests.py: no test is called {', '.join(stale)}")
    first = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (item.path.stem not in FRESH, item.path not in first))
