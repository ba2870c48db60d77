"""An out-of-memory text and the set-up that gave it, to what was asked for and what would change it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from harness.config.own_files.oom.message import OomMessage, messages_in
from harness.config.own_files.oom.phase import OomPlace, where_of
from harness.config.own_files.oom.tensors import StepTensor, matches, step_tensors
from harness.config.own_files.setup import OwnSetup
from harness.instruments.transformer.shape import TransformerShape


class Remedy(NamedTuple):
    """A change that helps, with what it costs and its technique in this project."""

    change: str
    cost: str
    technique: str = ""


class OomExplained(NamedTuple):
    """What an out-of-memory text says."""

    message: OomMessage
    where: OomPlace
    fragmentation: str  # yes, partly, no, or unknown
    tensors: tuple[StepTensor, ...]  # of the size that was asked for, most likely first
    remedies: tuple[Remedy, ...]  # cheapest first
    missing: str  # what would say more, in one line


def read_oom(
    text: str,
    setup: OwnSetup | None = None,
    shape_of: Callable[[Mapping[str, Any]], TransformerShape] | None = None,
) -> OomExplained:
    """Return what the first out-of-memory message of a text means for a set-up.

    `shape_of`: returns the shape of a Hugging Face config, or raises ValueError with why it has none.
    Raises ValueError with one line that says what was recognised where there is no such message.
    """
    messages = messages_in(text)
    if not messages:
        raise ValueError(_nothing(text))
    message = messages[0]
    text = _of_rank(text, message.rank)
    where = where_of(text[: text.find("out of memory")])
    if not where.phase:
        where = where_of(text)  # launchers print some tracebacks after the message
    found: list[StepTensor] = []
    missing = "config= is missing: with it the tensor of this size is named"
    if setup is not None and setup.model is None:
        named = setup.model_name or "no model"
        missing = f"model= is missing: {setup.format} names {named}, whose sizes are not known"
    elif setup is not None and setup.model is not None and shape_of is not None:
        try:
            found = matches(*message.tensor_B, where.phase, step_tensors(setup, shape_of(setup.model)))
            missing = "" if found else _no_match(setup)
        except ValueError as error:
            missing = str(error)
    fragmentation = fragmentation_of(message)
    remedies = remedies_of(message, fragmentation, where, found[0] if found else None, setup)
    return OomExplained(message, where, fragmentation, tuple(found), remedies, missing)


def _of_rank(text: str, rank: int | None) -> str:
    """Return the lines of one rank where torch prints its number before each, else the text."""
    lines = [line for line in text.splitlines() if line.lstrip().startswith(f"[rank{rank}]:")]
    return "\n".join(lines) if rank is not None and len(lines) > 1 else text


OTHER_TEXTS: tuple[tuple[str, str], ...] = (
    (
        r"CUDNN_STATUS|CUBLAS_STATUS_ALLOC_FAILED|HIPBLAS_STATUS_ALLOC_FAILED|rocblas_status_memory_error",
        "a library (cuBLAS or cuDNN) failed to allocate its workspace; torch's own message is missing",
    ),
    (r"NCCL[^\n]*out of memory", "NCCL failed to allocate its buffers; torch's own message is missing"),
    (
        r"Tried to allocate more than 1EB",
        "torch was asked for more than 1 EB, so a shape is wrong (a negative or overflowed size)",
    ),
    (
        r"(?:CUDA|HIP) error: out of memory|cudaErrorMemoryAllocation|hipErrorOutOfMemory",
        "the driver refused memory outside of torch's allocator (a context, a library, pinned host memory), "
        "which prints no size: another process may hold the GPU",
    ),
    (
        r"MPS backend out of memory",
        "the message is of Apple's MPS; those of CUDA, ROCm, XPU and NPU are read",
    ),
    (
        r"RESOURCE_EXHAUSTED|ResourceExhaustedError|XlaRuntimeError",
        "the message is of JAX or TensorFlow; torch's are read: '… out of memory. Tried to allocate …'",
    ),
    (
        r"Error out of memory at line \d+ in file \S*csrc",
        "bitsandbytes failed to allocate for itself, which prints no size; torch's own message is missing",
    ),
    (
        r"DefaultCPUAllocator|Cannot allocate memory|\bKilled\b|SIGKILL|exitcode\s*: -9|oom-kill",
        "the host's memory ran out (an allocation failed, or the kernel killed the process); no GPU message "
        "is in the text",
    ),
    (
        r"out of memory\.?\s+Tried to allocate",
        "torch's message ends before its size; give the text to its end: 'Tried to allocate 2.00 GiB …'",
    ),
    (
        r"Traceback",
        "a traceback without torch's line 'out of memory. Tried to allocate …'; give the text to its end",
    ),
)
"""Texts of other failures, and what to say of each; the first that is found counts."""


def _nothing(text: str) -> str:
    found = next((line for pattern, line in OTHER_TEXTS if re.search(pattern, text)), None)
    return found or (
        "no out-of-memory message of torch is in it: expected 'CUDA out of memory. Tried to allocate …'"
    )


def _no_match(setup: OwnSetup) -> str:
    if not setup.seq_len:
        return "no tensor of this size; seq_len is missing, so activations and logits are not known"
    if setup.zero and setup.dp is None and setup.devices is None:
        return "no tensor of this size; devices is missing, so shards are not known"
    return "no tensor of a step has this size: sequences of another length, or a tensor that is not listed"


def fragmentation_of(message: OomMessage) -> str:
    """Return whether torch held enough unused memory: yes, partly (with what was free), no, or unknown."""
    if message.unallocated_B is None:
        return "unknown"
    if message.unallocated_B >= message.asked.lo_B:
        return "yes"
    free_B = message.free.B if message.free else 0.0
    return "partly" if message.unallocated_B + free_B >= message.asked.lo_B else "no"


EXPANDABLE = Remedy("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", "nothing")
FUSED_LOSS = Remedy(
    "a fused or chunked loss (Liger, cut cross-entropy)", "almost nothing", "loss: {fused: true}"
)
FLASH = Remedy("flash attention", "nothing: it is faster", "attention")
FUSED_ADAM = Remedy("fused AdamW in place of foreach", "nothing: it is faster", "optimizer: {impl: fused}")
SELECTIVE = Remedy(
    "selective recomputation", "part of the forward pass again", "activation_checkpointing: {mode: per_op}"
)
FULL = Remedy("full recomputation", "the forward pass again", "activation_checkpointing: {mode: full}")
SMALLER = Remedy(
    "half the micro-batch with twice the accumulation", "smaller matmuls", "gradient_accumulation"
)
EIGHT_BIT = Remedy("8-bit AdamW", "another optimizer's rounding", "optimizer: {name: adamw_8bit}")
OFFLOAD = Remedy("states on the host", "transfers in every step", "fsdp2: {cpu_offload: true}")
SPLIT = Remedy("tensor or context parallelism, or more of it", "collectives in every layer")


def remedies_of(
    message: OomMessage,
    fragmentation: str,
    where: OomPlace,
    tensor: StepTensor | None,
    setup: OwnSetup | None,
) -> tuple[Remedy, ...]:
    """Return what would change it, cheapest first, without what the set-up has already."""
    found: list[Remedy] = []
    if fragmentation in ("yes", "partly"):
        found.append(EXPANDABLE)
    if message.others_B and message.others_B > message.asked.lo_B:
        others = f"end the other processes on this GPU, which hold {message.others_B / 2**30:.2f} GiB"
        found.append(Remedy(others, "nothing"))
    kind = (
        tensor.kind
        if tensor
        else {"loss": "logits", "optimizer": "optimizer", "gather": "gather"}.get(where.phase, "")
    )
    if not tensor and where.operation == "attention scores":
        kind = "attention"
    found += [one for one in BY_KIND.get(kind, BY_KIND[""]) if setup is None or not _has(setup, one)]
    if setup is not None:
        found += _sharding(setup, kind)
    return tuple(dict.fromkeys(found))


BY_KIND = {
    "logits": (FUSED_LOSS, SMALLER, SPLIT),
    "attention": (FLASH, SMALLER, SPLIT),
    "activation": (SELECTIVE, SMALLER, FULL, SPLIT),
    "optimizer": (FUSED_ADAM, EIGHT_BIT, OFFLOAD),
    "gather": (SMALLER, FULL, OFFLOAD),
    "gradient": (SMALLER, EIGHT_BIT, OFFLOAD),
    "collective": (SMALLER, EIGHT_BIT, OFFLOAD),
    "": (FUSED_LOSS, SELECTIVE, SMALLER, FULL, OFFLOAD),
}


def _has(setup: OwnSetup, remedy: Remedy) -> bool:
    has = {
        FUSED_LOSS: setup.fused_loss,
        FLASH: setup.attention == "flash",
        FUSED_ADAM: setup.optimizer_impl == "fused",
        SELECTIVE: setup.recompute != "none",
        FULL: setup.recompute == "full" and setup.recompute_every == 1,
        SMALLER: setup.micro_batch_size == 1,
        EIGHT_BIT: setup.optimizer.endswith("8bit"),
        OFFLOAD: "optimizer" in setup.offload,
    }
    return has.get(remedy, False)


def _sharding(setup: OwnSetup, kind: str) -> list[Remedy]:
    """Return more sharding, where the set-up shards less than everything."""
    if setup.zero == 3 or kind in ("logits", "attention"):
        return []
    if setup.engine == "megatron":
        return (
            [
                Remedy(
                    "--use-distributed-optimizer",
                    "nothing: as many bytes are sent (arXiv 1910.02054, section 7)",
                    "",
                )
            ]
            if not setup.zero
            else []
        )
    stage = "fsdp2, or ZeRO 3" if setup.zero else "fsdp2, or ZeRO 1 to 3"
    return [
        Remedy(
            f"shard more over the ranks: {stage}",
            "half as much traffic again for stage 3 (arXiv 1910.02054, section 7)",
            "fsdp2",
        )
    ]
