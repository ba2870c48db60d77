"""The kernels suite: what fusion, compilation, flash attention and narrow types gain, alone and in a step.

The baseline is eager PyTorch: explicit attention, fp32. Cells of one workload are timed together; see
harness/interleaved_group.py for the order of the calls below.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import psutil
import torch

from harness.instruments.memory.allocator import watch
from harness.instruments.timing.stopwatch import stopwatch
from harness.records import Json, Note, Origin, Reading, Unavailable
from suites.kernels import against_baseline, against_float64, autocast_bf16, reference, training_step
from suites.kernels.bound_call import seconds_of, shared, work_of
from suites.kernels.operations import OPERATIONS as ALONE
from suites.kernels.operations import attention
from suites.kernels.subject import Subject, Workload

OPERATIONS = {**ALONE, training_step.OPERATION.name: training_step.OPERATION}

FREE_SHARE = 0.8
"""Of the memory that is free: explicit attention that needs more is not begun."""

TOLERANCES = {"fp32": 1e-4, "bf16": 2e-2}
"""fp32: sums of some thousands of products at 2^-24 each. bf16: several roundings of 2^-9 each."""


def build(workload: Json, seed: int) -> Subject:
    """The baseline; raises `Unavailable` for a workload that is too large for anything but a GPU."""
    given = Workload(**workload)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if given.device == "cuda" and device.type != "cuda":
        raise Unavailable("this workload's size is chosen for a GPU, and there is none here")
    operation = OPERATIONS[given.operation]
    refuse_misfits(given)
    return Subject(
        workload=given,
        seed=seed,
        operation=operation,
        device=device,
        function=operation.eager,
        precision=precision_of(given.dtype, device),
        tolerance=TOLERANCES[given.dtype],
    )


def bf16_FLOP(subject: Subject) -> float:
    """Return the FLOP of the bf16 matrix products in one sample; 0 where a GPU computes them."""
    products = subject.operation.name in (*autocast_bf16.PRODUCTS, "matmul")
    narrow = subject.precision == "bf16" and subject.device.type == "cpu"
    return subject.operation.flops(subject.workload) if narrow and products else 0.0


def precision_of(dtype: str, device: torch.device) -> str:
    """Of products of matrices in `dtype`: "tf32" where a GPU may take it for fp32, as the user set torch."""
    narrow = torch.backends.cuda.matmul.allow_tf32 or torch.get_float32_matmul_precision() != "highest"
    return "tf32" if dtype == "fp32" and device.type == "cuda" and narrow else dtype


def refuse_misfits(workload: Workload) -> None:
    """Raises `Unavailable` for what cannot be asked: an odd head turned, a step without gradient."""
    step = workload.operation == training_step.OPERATION.name
    size = head_size(workload)
    if size % 2 and (step or workload.operation == "rotary"):
        raise Unavailable(f"rotary halves a head: its size must be even, not {size}")
    if step and not workload.backward:
        raise Unavailable("a training step has a backward pass: backward must be true")


def head_size(workload: Workload) -> int:
    """Of a step, its hidden size over its heads."""
    step = workload.operation == training_step.OPERATION.name
    return workload.hidden_size // workload.num_attention_heads if step else workload.head_size


def check(subject: Subject) -> None:
    """Hold the variant's results against float64's, a step's against the baseline's; raises `WrongResult`.

    Raises MemoryError where eager attention cannot fit.
    """
    require_memory(subject)
    if subject.operation is training_step.OPERATION:
        against_baseline.check_step(subject)
    else:
        against_float64.check(subject)


def require_memory(subject: Subject) -> None:
    """Raises MemoryError before a call that would take all of the machine's memory, and others' with it."""
    if subject.attention != "explicit" or subject.shapes == "awkward":
        return
    need_B = subject.operation.eager_B(subject.workload)
    free_B = psutil.virtual_memory().available
    if subject.device.type == "cuda":
        free_B = free_on_gpu_B(subject.device)
    if need_B > FREE_SHARE * free_B:
        raise MemoryError(
            f"{subject.operation.name} with all scores held takes some {need_B / 1e9:.1f} GB, "
            f"and {free_B / 1e9:.1f} GB are free"
        )


def free_on_gpu_B(device: torch.device) -> int:
    """What torch can still have: free for all, and what its allocator keeps without a tensor in it."""
    kept_B = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0] + kept_B)


def conditions(subject: Subject) -> Mapping[str, str]:
    """What a claim about speed may ask after."""
    workload, device = subject.workload, subject.device
    step = subject.operation is training_step.OPERATION
    has_gradient = workload.operation != "adamw"
    return {
        "device": device.type,
        "device_name": torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
        "operation": workload.operation,
        "part": workload.part if step else "",
        "precision": subject.precision,
        "dtype": workload.dtype,
        "attention": subject.attention,
        "passes": "forward+backward" if workload.backward and has_gradient else "forward",
        "micro_batch_size": str(workload.micro_batch_size),
        "seq_len": str(workload.seq_len),
        "head_size": str(head_size(workload)),
        "causal": str(workload.causal),
        "threads": str(torch.get_num_threads()),
    }


def read_once(subject: Subject) -> Iterator[Reading | Note]:
    """What is read once: traffic and arithmetic by formula, the check's error, peak memory, compile time."""
    workload, operation = subject.workload, subject.operation
    yield Reading("bytes_moved", "B", operation.bytes_moved(workload), Origin.CALCULATED)
    yield Reading("flops", "1", operation.flops(workload), Origin.CALCULATED)
    against = "float64"
    if operation is training_step.OPERATION:
        against = "baseline"
        yield Reading("tokens_per_step", "1", workload.rows, Origin.CALCULATED)
    yield Reading("max_error", "1", subject.held["max_error"], Origin.MEASURED, against)
    yield Note(f"compared: {subject.held['compared']}")
    yield from map(Note, subject.notes)
    if subject.timed:
        yield from one_call(subject)
    if subject.once is not None:
        yield from subject.once(subject)


def one_call(subject: Subject) -> Iterator[Reading | Note]:
    """What one call takes beside its time; the stopwatch for the rounds is made.

    Compile time is what the first call took beyond the second. Of torch.compile it is "cached" where compiled
    code was found on disk, as it is from the second repeat on, and "cold" else; Triton's own and XLA's
    compilers do not tell, and theirs has no method.
    """
    work = work_of(subject)
    second_s, _ = seconds_of(work, subject.device)
    if subject.compiles and "first_s" in subject.held:
        taken_s = max(subject.held["first_s"] - second_s, 0.0)
        method = ""
        if subject.compiler_cache:
            method = "cached" if subject.held["cached"] else "cold"
        yield Reading("compile_time", "s", taken_s, Origin.MEASURED, method)
    if subject.as_torch is None:
        yield Reading("peak_memory", "B", peak_memory(subject), Origin.MEASURED)
    subject.held["stopwatch"] = stopwatch(work, subject.device)


def peak_memory(subject: Subject) -> float:
    """Most live bytes in one call beyond those before it, by the allocator's account."""
    work, before_B = work_of(subject), 0
    if subject.device.type == "cuda":
        before_B = torch.cuda.memory_allocated(subject.device)
    with watch(subject.device) as watched:
        watched.mark("call")
        work()
    return float(max(watched.peaks[0].live_B - before_B, 0))


def timed(subject: Subject) -> bool:
    """Whether the variant is to be timed here."""
    return subject.timed


def sample(subject: Subject) -> Iterator[Reading | Note]:
    """One window of calls: seconds a call."""
    yield from subject.held["stopwatch"].window()


def close(subject: Subject) -> None:
    """Let go of inputs, model and references."""
    subject.held.clear()
    reference.reference_of.cache_clear()
    shared.cache_clear()
    against_baseline.course_of.cache_clear()
    attention.kept_mask.cache_clear()
