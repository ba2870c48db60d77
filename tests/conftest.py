"""For every test: one thread of torch each, and none that spins: several tests run at once (make test)."""

import faulthandler
import gc
import os
import pickle
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key
from forked_ranks import forking
from marked import left, marked, wait_for

from harness.config import run as config
from harness.instruments.distributed import rank_pool

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # of ranks too, some of which have a thread a core
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # each would be a process that imports torch

STARTS = {
    "ranks, engines and networks": """
        test_context_parallel test_dataloader_loader test_dataloader_other_peers test_dataloader_peers
        test_dataloader_suite test_drain_gloo test_every_optimization test_fabric test_fsdp1
        test_fsdp2 test_fsdp2_resharding
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
        test_symmetric_compiled test_triton_attention test_triton_loss_and_optimizer test_triton_rowwise
    """,
    "real training steps, and simulations": """
        test_bf16_products test_checkpointing_policies test_congestion test_congestion_dcqcn
        test_fabric_flows test_fake_step test_fit test_float8 test_host_optimizer test_huggingface
        test_layer_repetition test_leaf_spine_max_min test_leaf_spine_simulator test_llama_adapter
        test_lora
        test_losses_in_chunks test_memory_published test_offload_dry_run test_offload_memory_estimates
        test_optimizations test_optimizer_states test_precision_and_losses test_search test_simulated_cuda
        test_user_model
    """,
    "whole sweeps": """
        test_cgroup test_guides test_installed test_interleaved_groups test_main
        test_private_memory test_protocols test_reference test_resume test_runner test_template
        test_worker
    """,
}
"""Files whose tests are all slow, by what they start; `make check` leaves them out."""


FRESH = ("test_dataloader_other_peers",)
"""Files whose tests come before all others, in a worker in which nothing else has run: loaders fork it, and
their processes have ended at once in one that had run other tests."""

LONG = """
    test_bf16_products.py::*[[]without AVX2]
    test_compiled_memory.py::test_as_measured[[]full checkpointing]
    test_dataloader_loader.py::test_no_document_is_lost_or_doubled_when_any_actor_is_killed[[]1]
    test_dataloader_other_peers.py::*[[]ray_data-jsonl]
    test_dataloader_other_peers.py::test_epochs_repeat_and_the_mixture_is_kept[[]ray_data-parquet]
    test_every_optimization.py::*memory_parquet_306_8-disaggregated_autoscaled]
    test_every_optimization.py::*memory_parquet_306_8-grain_iter_mix]
    test_every_optimization.py::*memory_parquet_306_8-ray_data]
    test_every_optimization.py::*fsdp2_two_a_node-gradient_accumulation]
    test_every_optimization.py::*zero3-gradient_accumulation]
    test_every_optimization.py::*llama_5m-partial_offload.half]
    test_every_optimization.py::*step_30m_512-torch_compile]
    test_fit.py::test_what_ifs_predict_what_their_own_search_finds
    test_layer_repetition.py::test_built_as_traced[[]gradients pile up]
    test_layer_repetition.py::test_built_as_traced[[]shared sequences, on CUDA]
    test_layer_repetition.py::test_built_as_traced[[]dropout, two micro-batches]
    test_ray_executor.py::test_a_ray_of_this_machine_ends_with_the_submitter_and_the_next_runs_the_rest
    test_ray_executor.py::test_a_folder_that_one_node_of_two_does_not_see_ends_the_sweep
    test_slurm_executor.py::test_a_node_that_a_cell_on_two_nodes_loses_is_a_status_and_tried_again
    test_triton_attention.py::test_every_kernel_compiles_for_every_target[[]fp32-*
    test_triton_attention.py::test_every_kernel_compiles_for_every_target[[]bf16-sm_80-*
    test_triton_attention.py::test_every_kernel_compiles_for_every_target[[]bf16-sm_100-*
    test_triton_attention.py::test_every_kernel_compiles_for_every_target[[]bf16-gfx90a-*
"""
"""What takes tens of seconds and adds little to shorter tests of the same file: another setting, another
kernel's target, one more way for a node or a submitter to be lost. `make long` runs these."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of these files and lists, and put files with slow tests first.

    Workers take files in this order (--no-loadscope-reorder), so none gets a slow one at the end.
    """
    long = [line.strip() for line in LONG.strip().splitlines()]
    slow = {file for files in STARTS.values() for file in files.split()}
    for item in items:
        if item.path.stem in slow:
            item.add_marker(pytest.mark.slow)
        name = f"{item.path.name}::{item.name}"
        if any(fnmatchcase(name, pattern) for pattern in long):
            item.add_marker(pytest.mark.long)
    first = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (item.path.stem not in FRESH, item.path not in first))


BEYOND_TIMEOUT_S = 60.0
"""How long a test may outlive its timeout. pytest-timeout raises in Python code, which a test that waits in a
library's own code never reaches: it would hold up all others."""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """End the process of a test that hangs in a library's code, with all stacks; pytest-xdist names it."""
    marked = item.get_closest_marker("timeout")
    given = (*marked.args, marked.kwargs.get("timeout")) if marked else (item.config.getoption("timeout"),)
    timeout_s = float(given[0] if given[0] is not None else item.config.getini("timeout"))
    stderr = item.config.stash.get(fault_handler_stderr_fd_key, None)
    if not timeout_s or stderr is None:
        return (yield)
    faulthandler.dump_traceback_later(timeout_s + BEYOND_TIMEOUT_S, exit=True, file=stderr)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give a file to one worker, so that what its tests share is set up once; but some by their suite.

    A parameter that begins with `<suite>|` says that a test shares things with tests of that suite alone.
    """
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class BySuite(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            name, _, _ = nodeid.partition("|")
            return super()._split_scope(nodeid) if name == nodeid else name

    return BySuite(config, log)


def composed_once(compose: Callable[..., Any]) -> Callable[..., Any]:
    """Let Hydra compose each suite's YAML files once per process: it takes about a second."""

    @cache
    def pickled(name: str, chosen: tuple[tuple[str, str], ...], *others: Any) -> bytes:
        return pickle.dumps(compose(name, dict(chosen)))

    def composed(name: str, chosen: dict[str, str]) -> Any:
        others = (str(config.CONF), tuple(config.with_yaml(name)), tuple(config.optimizations(name)))
        return pickle.loads(pickled(name, tuple(sorted(chosen.items())), *others))

    return composed


config.compose_suite = composed_once(config.compose_suite)  # for the parameters of tests, too


@pytest.fixture(scope="session", autouse=True)
def ranks_forked():
    """Let pools of ranks fork them, in this process: see forked_ranks.py."""
    with pytest.MonkeyPatch.context() as patch:
        template = forking(patch)
        yield template
        template.close()


@pytest.fixture(scope="module")
def ranks_by_command(ranks_forked):
    """Let pools start their ranks as in a sweep: for tests of starts, and of a rank's own memory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rank_pool, "subprocess", subprocess)
        yield


@pytest.fixture
def nothing_left(ranks_forked, monkeypatch):
    """Check that after a test there are no other processes, files of /dev/shm or namespaces than before."""
    mark = marked(monkeypatch)
    before = left(mark)
    yield
    kept = set() if ranks_forked.process is None else {f"process {ranks_forked.process.pid}"}
    added = left(mark) - before - kept  # the process that forks ranks serves later tests, too
    with suppress(AssertionError):  # a killed process takes a moment to end
        wait_for(lambda: not added & left(mark), limit_s=20)
    assert added & left(mark) == set()


@pytest.fixture(scope="module")
def toy_suites():
    """Make children find the toy suites; another test's process that is out of memory is none of theirs."""
    from toy.sweep import environ

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", environ()["PYTHONPATH"])
        patch.setattr("harness.sweep.executors.child.oom_kills", lambda: 0)
        yield


@pytest.fixture(autouse=True)
def frozen(request: pytest.FixtureRequest) -> None:
    """Freeze what lives before a slow test, so that collections of garbage do not traverse all of torch.

    `harness.instruments.memory.allocator.watch` begins with one. What the test makes is collected.
    """
    if request.node.get_closest_marker("slow"):
        gc.collect()
        gc.freeze()
