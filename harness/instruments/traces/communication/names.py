"""Recognize kernels that move data between GPUs by their names.

A name is demangled as far as needed and taken apart into the function, its template arguments and its
parameters. Libraries are recognized anywhere in it, collectives only in the function and its template
arguments: a parameter's type says little about what a kernel does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple


class KernelRole(IntEnum):
    """What a kernel does."""

    COMPUTES = 0
    COMMUNICATES = 1
    BOTH = 2  # a product or a norm and a collective in one kernel


class KernelFamily(NamedTuple):
    """Kernels of one origin: a pattern, the collective if all of them do the same, and a source."""

    library: str
    pattern: str
    source: str
    operation: str = ""


LIBRARIES: tuple[KernelFamily, ...] = (
    KernelFamily("NCCL", r"nccl", "github.com/NVIDIA/nccl"),
    KernelFamily("RCCL", r"rccl", "github.com/ROCm/rccl"),
    KernelFamily("MSCCL++", r"msccl", "github.com/microsoft/mscclpp"),
    KernelFamily("oneCCL", r"one_?ccl|(?<![a-z])ccl(::|_)", "github.com/uxlfoundation/oneCCL"),
    KernelFamily("UCCL", r"uccl", "github.com/uccl-project/uccl"),
    KernelFamily(
        "another vendor's library",
        r"(?<![a-z])(h|m|x|t|v|e|cn|bk)ccl(?!u)|(?<![a-z])hcom_",
        "gitee.com/ascend/hccl",
    ),
    KernelFamily("NVSHMEM", r"nv_?shmem", "docs.nvidia.com/nvshmem"),
    KernelFamily("rocSHMEM", r"roc_?shmem", "github.com/ROCm/rocSHMEM"),
    KernelFamily("Intel SHMEM", r"(?<![a-z])ishmem", "github.com/oneapi-src/ishmem"),
    KernelFamily("DeepEP", r"deep_?ep(?![a-z])|hybrid_?ep(?![a-z])", "github.com/deepseek-ai/DeepEP"),
    KernelFamily(
        "userbuffers",
        r"user_?buffers|(?<![a-z0-9])ub_(all|reduce|ag_|rs_|send|recv|push|pull)",
        "github.com/NVIDIA/TransformerEngine",
    ),
    KernelFamily(
        "symmetric memory",
        r"symm(etric)?_?mem|(?<![a-z0-9])multimem_|(?<![a-z])nvls(?![a-z])|c10d::",
        "github.com/pytorch/pytorch torch/csrc/distributed/c10d/symm_mem",
    ),
    KernelFamily("MNNVL", r"(?<![a-z])mnnvl", "github.com/NVIDIA/TensorRT-LLM"),
    KernelFamily("MORI", r"(?<![a-z])mori::", "github.com/ROCm/mori"),
)
"""Recognized anywhere in a name, in lower case and with its words apart: AllReduce is all_reduce."""

OPERATIONS: tuple[KernelFamily, ...] = (
    KernelFamily(
        "DeepEP",
        r"(^|::)(ep|internode(_ll)?|intranode(_ll)?|layout)::(\w+::)*(\w*(notify|dispatch|combine)\w*|barrier"
        r"|clean_low_latency_buffer)"
        r"|(?<![a-z])(cached_)?notify_(dispatch|combine)|(?<![a-z])cached_notify"
        r"|low_latency_(dispatch|combine)"
        r"|(dispatch|combine)(_tokens?)?_?(intra|inter)_?node|(intra|inter)_?node_?(dispatch|combine)"
        r"|(?<![a-z])ep_(dispatch|combine)",
        "github.com/deepseek-ai/DeepEP csrc/kernels",
    ),
    KernelFamily(
        "custom all-reduce",
        r"cross_device_reduce|quick_?(all_?)?reduce|allreduce_prototype",
        "github.com/vllm-project/vllm csrc/custom_all_reduce.cuh, csrc/quickreduce",
        "all_reduce",
    ),
    KernelFamily(
        "one-shot or two-shot",
        r"(?<![a-z])(one|two|1|2|multi)_?shot_?(all_?)?reduce",
        "github.com/pytorch/pytorch torch/csrc/distributed/c10d/symm_mem",
        "all_reduce",
    ),
    KernelFamily(
        "TensorRT-LLM",
        r"moe_?(a2a|all_?to_?all|comm(?![a-z]|on))|moe_?comm_?kernel|lamport",
        "github.com/NVIDIA/TensorRT-LLM cpp/tensorrt_llm/kernels",
    ),
    KernelFamily(
        "FLUX, Triton-distributed",
        r"(?<![a-z])(ag|a2a)_?((grouped|group|moe|scatter)_?)*gemm|gemm_?(rs|ar|ag|a2a)(?![a-z])"
        r"|(?<![a-z])gather_rs(?![a-z])",
        "github.com/bytedance/flux, github.com/ByteDance-Seed/Triton-distributed",
    ),
    KernelFamily(
        "signals between ranks",
        r"stream_write_value32|(?<![a-z])(put|wait)_signal|(?<![a-z_])barrier_kernel|barrier_all"
        r"|barrier_on_stream|cross_?(device|gpu|rank)_?barrier|ipc_?barrier",
        "github.com/pytorch/pytorch torch/csrc/distributed/c10d/symm_mem/CUDASymmetricMemory.cu",
        "barrier",
    ),
    KernelFamily(
        "point to point",
        r"(?<![a-z])send_?recv|(?<![a-z])p2p_?(send|recv|put|get|push|pull|copy)",
        "github.com/ByteDance-Seed/Triton-distributed",
        "send_recv",
    ),
    KernelFamily(
        "a collective",
        r"(?<![a-z])(shot|custom|quick|fused|ring|tree|inter|intra)?all_?(reduce|gather)(?!_copy)"
        r"|(?<![a-z])reduce_?scatter|all_?(to|2)_?all|(?<![a-z])a2a(?![a-z])",
        "the name says it",
    ),
)
"""Recognized in the function and its template arguments, written the same."""

LOCAL = re.compile(
    r"^(at|cub|thrust|rocprim|hipcub|c10)::"
    r"|^triton_(poi|per|red|tem|for|mm|bmm|unk|sta|split_scan)_"
    r"|(?i:(?<![a-z])(block|warp|thread|cta|quad|wave|lane|tile|simd)_?all_?(reduce|gather))"
)
"""Functions that compute, whatever their template arguments are: PyTorch's own, primitives, and Inductor's
kernels, which have the names of the operators around them."""

PRODUCT = re.compile(
    r"gemm|matmul|(?<![a-z])b?mm(?![a-z])|(rms|layer|group|batch|_)_?norm(?!al)|(?<![a-z])norm_"
    r"|attention|attn|moe_?(reduce|finalize)|swiglu|silu|gelu|softmax"
)
"""What a kernel computes that communicates, too."""


class NameParts(NamedTuple):
    """A kernel's name taken apart."""

    function: str  # with its namespaces
    arguments: str  # of its templates
    parameters: str


class NamedKernel(NamedTuple):
    """What a name shows: the role, and the family that recognized communication, None for computing."""

    role: KernelRole
    family: KernelFamily | None


@lru_cache(maxsize=100_000)
def recognized(name: str) -> NamedKernel:
    """Return what a kernel does, as far as its name shows it."""
    parts = taken_apart(name)
    if LOCAL.search(parts.function):
        return NamedKernel(KernelRole.COMPUTES, None)
    family = _family(parts)
    if family is None:
        return NamedKernel(KernelRole.COMPUTES, None)
    *namespaces, function = parts.function.split("::")  # of a library of products, which has collectives, too
    fused = [one for one in namespaces if any(_found(operation, one) for operation in OPERATIONS)]
    both = PRODUCT.search(words_apart(" ".join([*fused, function, parts.arguments]))) is not None
    return NamedKernel(KernelRole.BOTH if both else KernelRole.COMMUNICATES, family)


def _family(parts: NameParts) -> KernelFamily | None:
    operation = next((one for one in OPERATIONS if _found(one, parts.function)), None)
    everywhere = f"{parts.function} {parts.arguments} {parts.parameters}"
    library = next((one for one in LIBRARIES if _found(one, everywhere)), None)
    if library is not None and operation is not None and operation.operation:
        return library._replace(operation=operation.operation)
    return library or operation or next((one for one in OPERATIONS if _found(one, parts.arguments)), None)


def _found(family: KernelFamily, text: str) -> bool:
    return re.search(family.pattern, words_apart(text)) is not None


@lru_cache(maxsize=100_000)
def words_apart(text: str) -> str:
    """Return a text in lower case, with an underscore where a capital begins a word."""
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", text)
    return apart.lower()


@lru_cache(maxsize=100_000)
def taken_apart(name: str) -> NameParts:
    """Return the function, the template arguments and the parameters of a kernel's name."""
    text = "::".join(_identifiers(name)) if name.startswith("_Z") else name
    text = text.replace("(anonymous namespace)", "anonymous").replace("<unnamed>", "anonymous")
    outside: list[str] = []
    inside: list[str] = []
    depth = 0
    for at, letter in enumerate(text):
        if letter == "<":
            depth += 1
        elif letter == ">":
            depth = max(depth - 1, 0)
        elif letter == "(" and depth == 0:
            return _parts(outside, inside, text[at:])
        (inside if depth else outside).append(letter)
    return _parts(outside, inside, "")


def _parts(outside: list[str], inside: list[str], parameters: str) -> NameParts:
    words = "".join(outside).replace(">", "").split()
    return NameParts(words[-1] if words else "", "".join(inside), parameters)


def _identifiers(mangled: str) -> Iterator[str]:
    """Yield the identifiers of a name that was mangled by the Itanium ABI: a length, then as many letters."""
    at = 0
    while at < len(mangled):
        literal = re.compile(r"L[a-z]n?\d+E").match(mangled, at)
        length = re.compile(r"\d+").match(mangled, at)
        if literal:
            at = literal.end()
        elif length:
            at = length.end() + min(int(length[0][:6]), len(mangled))
            word = mangled[length.end() : at]
            if re.fullmatch(r"[A-Za-z_]\w*", word):
                yield "anonymous" if word.startswith("_GLOBAL__N") else word
        else:
            at += 1
