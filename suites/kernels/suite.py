"""The kernels suite: what fusion, compilation, flash attention and mixed precision gain, alone and in a step.

The baseline is eager PyTorch: explicit attention, fp32. Cells of one workload are timed together; see
harness/sweep/interleaved.py for the order of the calls below.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import torch

from harness.instruments.memory.allocator import SAFE_SHARE, free_bytes, shortage, watch
from harness.instruments.timing.stopwatch import stopwatch
from harness.records import Json, Note, Origin, Reading, Unavailable
from suites.kernels import correctness, training_step
from suites.kernels.bound_call import Session, seconds_of, shared
from suites.kernels.operations import LINEAR_GELU, forward_traffic, kept_mask
from suites.kernels.operations import OPERATIONS as ALONE
from suites.kernels.subject import Subject
from suites.kernels.workload import Workload
from suites.training.models import huggingface

OPERATIONS = {**ALONE, training_step.OPERATION.name: training_step.OPERATION}

TOLERANCES = {"fp32": 1e-4, "bf16": 2e-2}
"""fp32: sums of some thousands of products at 2^-24 each. bf16: several roundings of 2^-9 each."""


def build(workload: Json, seed: int) -> Subject:
    """Return the baseline; raises `Unavailable` for a workload that is too large for anything but a GPU."""
    given = training_step.adopted(Workload(**workload))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if given.device == "cuda" and device.type != "cuda":
        raise Unavailable("this workload's size is chosen for a GPU, and there is none here")
    operation = OPERATIONS[given.operation]
    validate_shape(given)
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
    multiplies = subject.operation.name in (*training_step.PRODUCTS, "linear_gelu", "matmul")
    narrow = subject.precision == "bf16" and subject.device.type == "cpu"
    return subject.operation.flops(computed(subject)) if narrow and multiplies else 0.0


def computed(subject: Subject) -> Workload:
    """Return the workload that one call computes: a step's own, after its techniques."""
    step = subject.operation is training_step.OPERATION
    return training_step.workload_of_step(subject) if step else subject.workload


def precision_of(dtype: str, device: torch.device) -> str:
    """Return the precision of matrix products in `dtype`: "tf32" where a GPU may use it for fp32."""
    narrow = torch.backends.cuda.matmul.allow_tf32 or torch.get_float32_matmul_precision() != "highest"
    return "tf32" if dtype == "fp32" and device.type == "cuda" and narrow else dtype


def validate_shape(workload: Workload) -> None:
    """Raise `Unavailable` for shared key-value heads alone, a step without gradients, or an odd head size."""
    shares = workload.num_key_value_heads not in (1, workload.num_attention_heads)  # 1: the default
    if shares and workload.operation in ("attention", "rotary"):
        raise Unavailable(
            f"num_key_value_heads={workload.num_key_value_heads}: {workload.operation} alone has as many as "
            f"num_attention_heads, {workload.num_attention_heads}"
        )
    if workload.operation != training_step.OPERATION.name or workload.hf_config is not None:
        return
    size = head_size(workload)
    if size % 2:
        raise Unavailable(f"rotary halves a head: its size must be even, not {size}")
    if not workload.backward:
        raise Unavailable("a training step has a backward pass: backward must be true")


def head_size(workload: Workload) -> int:
    """Return the head size: for a step its hidden size over its number of heads, or the config's."""
    if workload.hf_config is not None and isinstance(stated := workload.hf_config.get("head_dim"), int):
        return stated
    step = workload.operation == training_step.OPERATION.name
    return workload.hidden_size // workload.num_attention_heads if step else workload.head_size


def apply_techniques(subject: Subject, techniques: Sequence[tuple[str, Json]]) -> Subject:
    """Return the subject with techniques of the training layer; `Unavailable` for a single operation."""
    workload = subject.workload
    if subject.operation is not training_step.OPERATION or workload.part != "all":
        raise Unavailable(f"{workload.operation} {workload.part}: techniques change a full training step")
    return training_step.with_techniques(subject, techniques)


def prepare(subject: Subject) -> Session:
    """Return the variant's session; raises MemoryError where eager attention cannot fit."""
    require_memory(subject)
    return Session(subject)


def check(session: Session) -> None:
    """Compare results with float64's, and a step's with the baseline's; raises `WrongResult`."""
    if session.subject.operation is training_step.OPERATION:
        correctness.check_step(session)
    else:
        correctness.check(session)


def require_memory(subject: Subject) -> None:
    """Raise MemoryError before a call that would take all of the machine's memory."""
    reason = too_large(subject)
    stores_scores = subject.attention == "explicit" and subject.shapes != "edge cases"
    if subject.workload.hf_config is None and stores_scores:
        lacking = shortage(subject.operation.eager_B(subject.workload), subject.device)
        reason = f"{subject.operation.name} with all scores in memory {lacking}" if lacking else ""
    if reason:
        raise MemoryError(reason)


def too_large(subject: Subject) -> str:
    """Return why a user's model does not fit into this machine's memory, and what would; "" where it does."""
    workload = subject.workload
    if workload.hf_config is None:
        return ""
    parameters = training_step.parameters(workload)
    activations_B = partial(training_step.activations_B, attention=subject.attention)
    need_B = training_step.states_in_memory_B(parameters) + activations_B(workload)
    lacking = shortage(need_B, subject.device)
    if lacking is None:
        return ""
    room_B = SAFE_SHARE * free_bytes(subject.device)
    part = training_step.layers_that_fit(workload, room_B, activations_B)
    count = f"{parameters / 1e9:.3g} B" if parameters >= 1e9 else f"{parameters / 1e6:.3g} M"
    return f"a step of {count} parameters and {workload.rows:,} tokens {lacking}; {part}"


def conditions(session: Session) -> Mapping[str, str]:
    """Return the conditions that a claim about speed may name."""
    subject = session.subject
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
        **({"activation": subject.activation()} if subject.operation is LINEAR_GELU else {}),
        **({"model_code": huggingface.model_code(workload.hf_config)} if workload.hf_config else {}),
    }


def read_once(session: Session) -> Iterator[Reading | Note]:
    """Yield what is read once: traffic and FLOP by formula, the check's error, peak memory, compile time."""
    subject, operation = session.subject, session.subject.operation
    workload = computed(subject)
    yield Reading("bytes_moved", "B", operation.bytes_moved(workload), Origin.CALCULATED)
    yield Reading("flops", "1", operation.flops(workload), Origin.CALCULATED)
    if operation is LINEAR_GELU:
        traffic_B = forward_traffic(workload, subject.activation())
        yield Reading("forward_traffic", "B", traffic_B, Origin.CALCULATED)
    against = "float64"
    if operation is training_step.OPERATION:
        against = "baseline"
        yield Reading("tokens_per_step", "1", workload.rows, Origin.CALCULATED)
        yield Reading("parameters", "1", training_step.parameters(workload), Origin.CALCULATED)
    yield Reading("max_error", "1", session.max_error, Origin.MEASURED, against)
    yield Note(f"compared: {session.compared}")
    yield from map(Note, subject.notes)
    if subject.timed:
        yield from measure_second_call(session)
        session.stopwatch = stopwatch(session.work, subject.device)
    if subject.once is not None:
        yield from subject.once(subject)


def measure_second_call(session: Session) -> Iterator[Reading | Note]:
    """Yield the compile time, which is what the first call took beyond the second, and peak memory.

    For torch.compile its method is "cached" where compiled code was found on disk, as it is from the second
    repeat on, and "cold" else. Triton's own and XLA's compilers do not report it, and theirs has no method.
    """
    subject = session.subject
    second_s, _ = seconds_of(session.work, subject.device)
    if subject.compiles and session.first_call_s is not None:
        method = ("cached" if session.compiled_from_cache else "cold") if subject.compiler_cache else ""
        taken_s = max(session.first_call_s - second_s, 0.0)
        yield Reading("compile_time", "s", taken_s, Origin.MEASURED, method)
    if subject.as_torch is None:
        yield Reading("peak_memory", "B", peak_memory(session), Origin.MEASURED)


def peak_memory(session: Session) -> float:
    """Return the peak live bytes of one call beyond those before it, as the allocator counts them."""
    device, before_B = session.subject.device, 0
    if device.type == "cuda":
        before_B = torch.cuda.memory_allocated(device)
    work = session.work
    with watch(device) as watched:
        watched.mark("call")
        work()
    return float(max(watched.peaks[0].live_B - before_B, 0))


def timed(session: Session) -> bool:
    """Return whether the variant is timed here."""
    return session.subject.timed


def sample(session: Session) -> Iterator[Reading | Note]:
    """Time one window of calls: seconds per call."""
    if session.stopwatch is None:
        raise RuntimeError("sample() is called before read_once()")
    yield from session.stopwatch.window()


def close(session: Session) -> None:
    """Release inputs, model and references."""
    session.release()
    correctness.reference_of.cache_clear()
    shared.cache_clear()
    correctness.baseline_steps.cache_clear()
    correctness.shared_states.cache_clear()
    kept_mask.cache_clear()
