"""A full training step on fake tensors: the peak of live bytes by kind, without allocating them.

Uniform layers are not run one by one: a few are, and what each adds to the timeline is repeated
(harness/instruments/memory/dry_run/layer_repetition.py).
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from harness.instruments.distributed.fake_process_group import fake_process_group
from harness.instruments.memory.caching_allocator import AllocatorSettings, replay
from harness.instruments.memory.dry_run import calling_line, substitutes
from harness.instruments.memory.dry_run.calling_line import CallingLine
from harness.instruments.memory.dry_run.fake_tensors import StorageLog, logged
from harness.instruments.memory.dry_run.layer_repetition import Pattern, timeline_of, with_first_step
from harness.instruments.memory.dry_run.substitutes import fsdp2_copies_up, fsdp2_streams, unbuilt_kernels
from harness.instruments.memory.memory_timeline import KINDS, OpSite, Timeline
from harness.instruments.memory.workspaces import host_workspace
from harness.instruments.torch_internals import errors_for_want_of_values, sends_kept
from harness.records import Unavailable, UnavailableWith
from suites.training.dry_run import simulated_cuda
from suites.training.dry_run.simulated_cuda import (
    BLOCK_B,
    CUBLASLT_WORKSPACE_B,
    WITHOUT_BF16_ATTENTION,
    as_on_cuda,
    cublaslt_threads,
    cuda_operations,
    cuda_workspace,
)
from suites.training.dry_run.trace_cache import TraceCache, key_of
from suites.training.host_memory import SimulatedHost
from suites.training.layouts.room import CUBLAS_HANDLES, CUBLAS_WORKSPACE_B
from suites.training.models.config_fault import one_line
from suites.training.step import TrainingStep
from suites.training.trainer import CPU, Trainer, live_gradients
from suites.training.workload import Architecture


def all_gather_B(output: torch.Tensor, *_: Any) -> int:
    """Return the bytes that gloo allocates during an all-gather: a copy of the output."""
    return int(output.nbytes)


def reduce_scatter_B(output: torch.Tensor, tensor: torch.Tensor, *_: Any) -> int:
    """Return the bytes allocated during a reduce-scatter by `instruments.distributed.ring_reduce_scatter`.

    Two ranks receive into the output; more receive into another tensor in every other turn. A single rank
    has gloo's own, which copies the input.
    """
    ranks = tensor.numel() // output.numel()
    return {1: int(tensor.nbytes), 2: 0}.get(ranks, int(output.nbytes))


TEMPORARY_B = {"_allgather_base_": all_gather_B, "_reduce_scatter_base_": reduce_scatter_B}
"""Temporary bytes of collectives over gloo, by operation; tests compare them with the allocator's events."""


class Device(NamedTuple):
    """The device whose operations are traced.

    `name`: "host", this machine's CPU, or "cuda". `measured`: the temporary memory of CPU operations is
    measured on this host, with its threads, so that the peak can be compared with a measured one. `gloo`:
    ranks are real ones over gloo, which makes copies that count, and keeps what it sends; they reduce to
    shares in a ring. `architecture`: of CUDA's device. `allocator`: the options of CUDA's caching allocator.
    `fsdp2_copies_on_own_stream`: see `substitutes.fsdp2_streams`.
    """

    name: str = "host"
    measured: bool = False
    gloo: bool = False
    architecture: Architecture = "hopper"
    allocator: AllocatorSettings = AllocatorSettings()
    fsdp2_copies_on_own_stream: bool = False
    fused: bool = True


HOST = Device()

FIRST_OF_A_GRAPH = 4
"""Layers from which on Inductor's code of one graph over all of them repeats; of fewer it does not."""


class DryRun(NamedTuple):
    """The peak of the second step, the first that is steady; bytes by kind sum to `peak_B`.

    `reserved_B`: what CUDA's caching allocator reserves at most on a device without limit, from the end of
    set-up to that of the second step; None for other devices. `allocated_B`: the most bytes that its blocks
    in use have then, which `max_memory_allocated` reports; a block can be larger than the tensor in it
    (CUDACachingAllocator.cpp, should_split). Of the ranks that were run, it is the one with the
    highest peak, of reserved bytes where there are any.
    """

    peak_B: int
    by_kind_B: dict[str, int]
    place: OpSite  # what was running
    reserved_B: int | None
    timeline: Timeline | None  # of set-up and both steps; None where it is not kept
    rank: int = 0
    peaks_B: tuple[tuple[int, int], ...] = ()  # (rank, peak) of each rank that was run
    allocated_B: int | None = None


def dry_run(
    step: TrainingStep,
    device: Device = HOST,
    full: bool = False,
    *,
    reserved: bool = True,
    found: list[Pattern] | None = None,
    rank: int | None = None,
    make_first_step: bool = False,
    in_two_processes: bool = False,
    traces: TraceCache | None = None,
) -> DryRun:
    """Return the peak of one rank. `full`: run every layer, uniform or not.

    `reserved`: on CUDA, also what the allocator reserves, which takes twice the time. `found`: gets how
    layers repeat; a later step that differs in its sizes alone is then built so without another check.
    `rank`: of a fake process group of as many ranks as a sharded step says; None: the one that takes the
    most, see `ranks_to_run`. `make_first_step`: make the first step from the second one where possible, in
    half of the time that `reserved` takes; see `layer_repetition.py`. `in_two_processes`: see
    `timeline_of_step`. `traces`: has the timelines of earlier dry runs, and gets this one's. Raises
    `Unavailable` where fake tensors cannot show the step.
    """
    reserved = reserved and device.name == "cuda"
    ranks = ranks_to_run(step) if rank is None else (rank,)
    found = found if len(ranks) == 1 else None  # ranks differ in more than sizes
    runs = []
    for one in ranks:

        def traced(rank: int = one) -> Timeline:
            rest = (found, rank, in_two_processes)
            if reserved and make_first_step:
                timeline = with_first_step(timeline_of_step(step, device, full, False, *rest))
                if timeline is not None:
                    return timeline
            return timeline_of_step(step, device, full, reserved, *rest)

        key = None if traces is None else key_of(step, device, one, full, reserved, make_first_step)
        timeline = traced() if traces is None or key is None else traces.timeline(key, traced)
        peak = timeline.peak()
        by_kind_B = dict(zip(KINDS, peak.by_kind_B, strict=True))
        place = timeline.events[peak.event].place
        run = DryRun(peak.total_B, by_kind_B, place, None, timeline, one)
        if reserved:
            blocks = replay(timeline.requests(), device.allocator)
            run = run._replace(reserved_B=blocks.peak_B, allocated_B=blocks.allocated_B)
        runs.append(run)
    most = max(runs, key=lambda run: run.peak_B if run.reserved_B is None else run.reserved_B)
    return most._replace(peaks_B=tuple((run.rank, run.peak_B) for run in runs))


def ranks_to_run(step: TrainingStep) -> tuple[int, ...]:
    """Return the ranks of which one takes the most.

    It is rank 0 but in a pipeline, where the first rank has the embedding and the last one the logits. Those
    between differ in the micro-batches that they keep, of which the second has the most. Ranks that share
    each layer are neighbours and take the same.
    """
    last = step.pipeline_ranks - 1
    return tuple(step.tensor_ranks * stage for stage in sorted({0, min(1, last), last}))


def timeline_of_step(
    step: TrainingStep,
    device: Device = HOST,
    full: bool = False,
    full_first_step: bool = False,
    found: list[Pattern] | None = None,
    rank: int = 0,
    in_two_processes: bool = False,
) -> Timeline:
    """Return all allocations and releases of one rank, from set-up to the end of the second step.

    `in_two_processes`: one of the depths that are traced is so in a process of its own, if it has a core.
    """
    if step.no_dry_run is not None:
        raise Unavailable(step.no_dry_run)
    narrow = step.features.precision != "fp32" and step.features.attention == "sdpa"
    if device.name == "cuda" and device.architecture in WITHOUT_BF16_ATTENTION and narrow:
        raise UnavailableWith(
            "torch's fused attention takes bf16 from Ampere on, and this device is older", "attention"
        )
    layers = step.workload.num_hidden_layers
    compiled = step.settings_of("compile")
    if compiled is not None:
        substitutes.load()
    first = FIRST_OF_A_GRAPH if compiled is not None and compiled.get("scope", "model") == "model" else None
    with among_ranks(step, rank):
        if full or not step.layers_alike:
            return trace(step, device, layers, full_first_step)

        def few(layers_per_stage: int) -> Timeline:
            depth = layers_per_stage * step.stages
            return trace(step, device, depth, full_first_step=full_first_step)

        ranks = step.ranks // step.pipeline_ranks if is_sharded(step) else 1
        if not (in_two_processes and calling_line.is_possible()):
            return timeline_of(few, layers // step.stages, ranks, found, first=first)
        with closing(calling_line.TwoProcesses(few)) as processes:
            return timeline_of(processes, layers // step.stages, ranks, found, processes.ahead, first)


def among_ranks(step: TrainingStep, rank: int = 0) -> AbstractContextManager[None]:
    """Return the fake process group of a step over ranks, as `rank`; no group for others, or inside one.

    Raises `Unavailable` on a real rank, which cannot represent others.
    """
    real = dist.is_initialized() and dist.get_backend() != "fake"
    if step.features.sharding == "none" or (real and not is_sharded(step)):  # a dry run of DDP needs no group
        return nullcontext()
    if real:
        raise Unavailable("this process is a rank itself and cannot simulate others")
    if dist.is_initialized() and dist.get_rank() == rank:
        return nullcontext()
    return fake_process_group(step.ranks, rank)


def is_sharded(step: TrainingStep) -> bool:
    """Return whether ranks have different shares of the model; DDP's have the same."""
    return step.features.sharding not in ("none", "ddp")


def trace(
    step: TrainingStep,
    device: Device = HOST,
    num_hidden_layers: int | None = None,
    full_first_step: bool = False,
) -> Timeline:
    """Run set-up and two steps with that many layers; return what they allocate and release.

    The second step is the steady one: the first makes the optimizer's state. Where gradients alone make it,
    zeros take the place of a forward and backward pass, unless the second step then gives gradients to fewer
    parameters. `full_first_step`: for what an allocator reserves, which depends on all that it ever cached.
    A compiled step is run once before, so that what is logged compiles nothing.
    Raises `Unavailable` where the step reads values.
    """
    try:
        if step.settings_of("compile") is not None:
            # Compiling holds tensors of the step in cycles, until a collection that can come at any time.
            _two_steps(step, device, num_hidden_layers, full_first_step=False)
            gc.collect()
        if not full_first_step:
            timeline, same_gradients = _two_steps(step, device, num_hidden_layers, full_first_step=False)
            if same_gradients:
                return timeline
        return _two_steps(step, device, num_hidden_layers, full_first_step=True)[0]
    except errors_for_want_of_values() as error:
        needs = f"the step needs values that fake tensors do not have: {one_line(error)}"
        raise Unavailable(needs) from error


def _two_steps(
    step: TrainingStep, device: Device, num_hidden_layers: int | None, full_first_step: bool
) -> tuple[Timeline, bool]:
    """Return the timeline of `trace`, and whether the first step was full or had as many gradients."""
    program = program_of(device)
    log = program.make_log()
    host = SimulatedHost(log, device.name == "cuda")
    with ExitStack() as entered:
        entered.enter_context(logged(log, program.random_states))
        entered.enter_context(program.operations())
        entered.enter_context(fsdp2_streams(log.enter_stream, device.fsdp2_copies_on_own_stream))
        if step.settings_of("compile") is not None:
            entered.enter_context(unbuilt_kernels(device.fused))
        if host.cuda:
            entered.enter_context(fsdp2_copies_up(log.is_below))
        for size_B in program.kept_B:
            log.reserve(size_B)
        trainer = Trainer(program.prepare(step), CPU, num_hidden_layers, host=host)
        for tensor in (*trainer.model.parameters(), *trainer.model.buffers()):
            log.label(tensor, "parameters")
        for tensor in getattr(trainer.model, "communication_buffers", ()):
            log.label(tensor, "communication")
        if device.name == "cuda" and device.architecture != "cdna":
            for _ in range(cublaslt_threads(trainer.plain, step.features.recompute)):
                log.reserve(CUBLASLT_WORKSPACE_B)
        gradients: list[int] = []  # how many, in each step

        def mark(phase: str) -> None:
            for gradient in live_gradients(trainer.model):
                log.label(gradient, "gradients")
            for tensor, kind in trainer.optimizer.tensors_by_kind():
                log.label(tensor, kind)
            log.enter_phase(phase)
            if phase == "optimizer":
                gradients.append(len(live_gradients(trainer.model)))

        trainer.mark = mark
        full = full_first_step or step.keep_gradients  # whose zeros would hide which parameters get none
        full = full or not trainer.optimizer.set_gradients_to_zeros()
        if full:
            trainer.train_step()
        else:
            trainer.update()
        for tensor in trainer.optimizer.state_tensors():
            log.label(tensor, "optimizer_states")
        since = len(log.ledger.events)
        trainer.train_step()
    first, second = gradients
    return log.ledger.timeline(since, program.round_to_B), full or first == second


class TrainingProgram(NamedTuple):
    """Whose operations are traced, and how their bytes are counted."""

    make_log: Callable[[], StorageLog]
    operations: Callable[[], AbstractContextManager[Any]]
    prepare: Callable[[TrainingStep], TrainingStep]
    kept_B: tuple[int, ...]  # by libraries, all the time
    round_to_B: int  # granularity of allocations
    random_states: bool  # saved ones are in the memory that is counted


def program_of(device: Device) -> TrainingProgram:
    """Return this host's operations, or CUDA's."""
    if device.name == "cuda":
        kept_B = (CUBLAS_WORKSPACE_B[device.architecture],) * CUBLAS_HANDLES
        line = CallingLine([simulated_cuda.__file__])
        log = partial(StorageLog, cuda_workspace, line=line, computes_below=True)
        return TrainingProgram(
            log, cuda_operations, as_on_cuda, kept_B, round_to_B=BLOCK_B, random_states=False
        )
    workspace = gloo_workspace if device.gloo else host_workspace
    log = partial(StorageLog, workspace, ask_host=device.measured)
    operations: Callable[[], AbstractContextManager[None]] = sends_kept if device.gloo else nullcontext
    return TrainingProgram(log, operations, lambda same: same, kept_B=(), round_to_B=1, random_states=True)


def gloo_workspace(operation: Any, arguments: Sequence[Any], result: Any) -> int:
    """Return an operation's temporary bytes beyond its results, on the CPU and between ranks over gloo."""
    if operation.namespace == "c10d" and operation._opname in TEMPORARY_B:
        return TEMPORARY_B[operation._opname](*arguments)
    return host_workspace(operation, arguments, result)


def device_here() -> torch.device:
    """Return CUDA where there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
