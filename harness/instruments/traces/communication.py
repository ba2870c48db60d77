"""Find the events of the device that move data between ranks, by what the trace shows of them.

In this order: a pattern of the user's, the arguments that PyTorch gives a collective, the name of the kernel,
the annotation around it on the device, and the operator that launched it.

A name is demangled as far as needed and taken apart into the function, its template arguments and its
parameters. Libraries are recognized anywhere in it, collectives only in the function and its template
arguments: a parameter's type says little about what a kernel does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from harness.instruments.traces.trace import EventKind, Ints, Mask, RankTrace, having


class KernelRole(IntEnum):
    """What a kernel does."""

    COMPUTES = 0
    COMMUNICATES = 1
    BOTH = 2  # a product or a norm and a collective in one kernel


class KernelFamily(NamedTuple):
    """Kernels of one origin: a pattern, and the collective if all of them do the same."""

    library: str
    pattern: str
    operation: str = ""


LIBRARIES = (
    KernelFamily("NCCL", r"nccl"),  # github.com/NVIDIA/nccl
    KernelFamily("RCCL", r"rccl"),  # github.com/ROCm/rccl
    KernelFamily("MSCCL++", r"msccl"),  # github.com/microsoft/mscclpp
    KernelFamily("oneCCL", r"one_?ccl|(?<![a-z])ccl(::|_)"),  # github.com/uxlfoundation/oneCCL
    KernelFamily("UCCL", r"uccl"),  # github.com/uccl-project/uccl
    # gitee.com/ascend/hccl and others
    KernelFamily("another vendor's library", r"(?<![a-z])(h|m|x|t|v|e|cn|bk)ccl(?!u)|(?<![a-z])hcom_"),
    KernelFamily("NVSHMEM", r"nv_?shmem"),  # docs.nvidia.com/nvshmem
    KernelFamily("rocSHMEM", r"roc_?shmem"),  # github.com/ROCm/rocSHMEM
    KernelFamily("Intel SHMEM", r"(?<![a-z])ishmem"),  # github.com/oneapi-src/ishmem
    # github.com/deepseek-ai/DeepEP
    KernelFamily("DeepEP", r"deep_?ep(?![a-z])|hybrid_?ep(?![a-z])"),
    # github.com/NVIDIA/TransformerEngine
    KernelFamily("userbuffers", r"user_?buffers|(?<![a-z0-9])ub_(all|reduce|ag_|rs_|send|recv|push|pull)"),
    # github.com/pytorch/pytorch torch/csrc/distributed/c10d/symm_mem
    KernelFamily(
        "symmetric memory", r"symm(etric)?_?mem|(?<![a-z0-9])multimem_|(?<![a-z])nvls(?![a-z])|c10d::"
    ),
    KernelFamily("MNNVL", r"(?<![a-z])mnnvl"),  # github.com/NVIDIA/TensorRT-LLM
    KernelFamily("MORI", r"(?<![a-z])mori::"),  # github.com/ROCm/mori
)
"""Recognized anywhere in a name, in lower case and with its words apart: AllReduce is all_reduce."""

OPERATIONS = (
    # github.com/deepseek-ai/DeepEP csrc/kernels
    KernelFamily(
        "DeepEP",
        r"(^|::)(ep|internode(_ll)?|intranode(_ll)?|layout)::(\w+::)*(\w*(notify|dispatch|combine)\w*|barrier"
        r"|clean_low_latency_buffer)"
        r"|(?<![a-z])(cached_)?notify_(dispatch|combine)|(?<![a-z])cached_notify"
        r"|low_latency_(dispatch|combine)"
        r"|(dispatch|combine)(_tokens?)?_?(intra|inter)_?node|(intra|inter)_?node_?(dispatch|combine)"
        r"|(?<![a-z])ep_(dispatch|combine)",
    ),
    # github.com/vllm-project/vllm csrc/custom_all_reduce.cuh, csrc/quickreduce
    KernelFamily(
        "custom all-reduce", r"cross_device_reduce|quick_?(all_?)?reduce|allreduce_prototype", "all_reduce"
    ),
    # github.com/pytorch/pytorch torch/csrc/distributed/c10d/symm_mem
    KernelFamily(
        "one-shot or two-shot", r"(?<![a-z])(one|two|1|2|multi)_?shot_?(all_?)?reduce", "all_reduce"
    ),
    # github.com/NVIDIA/TensorRT-LLM cpp/tensorrt_llm/kernels
    KernelFamily("TensorRT-LLM", r"moe_?(a2a|all_?to_?all|comm(?![a-z]|on))|moe_?comm_?kernel|lamport"),
    # github.com/bytedance/flux, github.com/ByteDance-Seed/Triton-distributed
    KernelFamily(
        "FLUX, Triton-distributed",
        r"(?<![a-z])(ag|a2a)_?((grouped|group|moe|scatter)_?)*gemm|gemm_?(rs|ar|ag|a2a)(?![a-z])"
        r"|(?<![a-z])gather_rs(?![a-z])",
    ),
    # github.com/pytorch/pytorch torch/csrc/distributed/c10d/symm_mem/CUDASymmetricMemory.cu
    KernelFamily(
        "signals between ranks",
        r"stream_write_value32|(?<![a-z])(put|wait)_signal|(?<![a-z_])barrier_kernel|barrier_all"
        r"|barrier_on_stream|cross_?(device|gpu|rank)_?barrier|ipc_?barrier",
        "barrier",
    ),
    # github.com/ByteDance-Seed/Triton-distributed
    KernelFamily(
        "point to point",
        r"(?<![a-z])send_?recv|(?<![a-z])p2p_?(send|recv|put|get|push|pull|copy)",
        "send_recv",
    ),
    KernelFamily(
        "a collective",
        r"(?<![a-z])(shot|custom|quick|fused|ring|tree|inter|intra)?all_?(reduce|gather)(?!_copy)"
        r"|(?<![a-z])reduce_?scatter|all_?(to|2)_?all|(?<![a-z])a2a(?![a-z])",
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
    family = None if LOCAL.search(parts.function) else _family(parts)
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
    return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", text).lower()


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
    while found := re.compile(r"L[a-z]n?\d+E|(\d+)").search(mangled, at):
        at = found.end()
        if found[1] is not None:  # else a literal
            at += min(int(found[1][:6]), len(mangled))
            word = mangled[found.end() : at]
            if re.fullmatch(r"[A-Za-z_]\w*", word):
                yield "anonymous" if word.startswith("_GLOBAL__N") else word


BACKENDS = r"(nccl|rccl|xccl|hccl|mccl|cncl|ccl|ucc|gloo|mpi):"  # begin annotations of process groups
CALLS = rf"^(record_param_comms|_?c10d(_functional(_autograd)?)?::|symm_mem::|{BACKENDS})"
"""Operators and annotations of the host that call a collective."""

OWN_CALLS = r"^\w+::\w*(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|cross_device_reduce)"
"""Operators of other libraries that are called as what they do: vllm::all_reduce."""

NO_CALLS = (
    r"copy|^symm_mem::fused|^symm_mem::_?fused|gemm|matmul|norm|^aten::|_autograd::wait|empty|rendezvous"
)
"""Operators with such names that prepare a collective, or do more than one."""

SYMMETRIC = r"^symm_mem::"  # operators that copy between GPUs by ordinary copies, also those that multiply
COPIES = r"^aten::(_foreach_)?copy_"  # operators in which a symmetric-memory operator copies
BETWEEN_DEVICES = r"(?i)PtoP|DtoD|peer|Device -> Device"  # copies that may be between GPUs
COMMUNICATING = (KernelRole.COMMUNICATES, KernelRole.BOTH)

BY_PATTERN, BY_NAME = 1, 3
HOW = ("", "pattern", "arguments", "name", "annotation", "operator")
"""By what an event was recognized; "" for those that were not."""


@dataclass(frozen=True)
class Communication:
    """What of a trace's device is communication; `patterns` are regular expressions of the user's."""

    trace: RankTrace
    patterns: tuple[str, ...] = ()

    @cached_property
    def recognized_by(self) -> Ints:
        """Return for each event how it was recognized as communication, an index of `HOW`. [event]"""
        found = np.zeros(len(self.trace), np.int64)
        masks = [self._by_user(), self._by_arguments(), self._roles(*COMMUNICATING)]
        if self._on_device.any():
            masks += [self._by_annotation(), self._by_operator()]
        for how in range(len(masks), 0, -1):  # so that the first of several counts
            found[masks[how - 1]] = how
        return found

    @cached_property
    def under_way(self) -> Mask:
        """Return which events of the device are collectives under way. [event]"""
        return np.asarray(self.recognized_by > 0, np.bool_)

    @cached_property
    def computes_too(self) -> Mask:
        """Return which of them are kernels that compute in the same launch. [event]"""
        by_pattern = self.recognized_by == BY_PATTERN
        return np.asarray(self._roles(KernelRole.BOTH) & ~by_pattern, np.bool_)

    @cached_property
    def _on_device(self) -> Mask:
        return self.trace.of_kind(EventKind.KERNEL, EventKind.COPY)

    def _by_user(self) -> Mask:
        found = np.zeros(len(self.trace), np.bool_)
        for pattern in self.patterns:
            found |= self.trace.named(pattern)
        return found & self._on_device

    def _by_arguments(self) -> Mask:
        return self._on_device & np.isin(np.arange(len(self.trace)), list(self.trace.collectives))

    def _roles(self, *roles: KernelRole) -> Mask:
        kernels = self.trace.of_kind(EventKind.KERNEL)
        used = np.unique(self.trace.name_of[kernels])
        having = [at for at in used.tolist() if recognized(self.trace.names[at]).role in roles]
        return kernels & np.isin(self.trace.name_of, having)

    def _by_annotation(self) -> Mask:
        """Return the events that an annotation of a collective encloses on their stream."""
        trace = self.trace
        marks = trace.of_kind(EventKind.DEVICE_ANNOTATION) & trace.named(f"^{BACKENDS}")
        owner = trace.around(marks, np.arange(len(trace)))
        return self._movable & (owner >= 0) & (trace.end_ns <= trace.end_ns[np.maximum(owner, 0)])

    @cached_property
    def _movable(self) -> Mask:
        """Return kernels, and copies that may be between GPUs. [event]"""
        trace = self.trace
        copies = trace.of_kind(EventKind.COPY) & trace.named(BETWEEN_DEVICES)
        return np.asarray(trace.of_kind(EventKind.KERNEL) | copies, np.bool_)

    def _by_operator(self) -> Mask:
        """Return the events whose innermost operator calls a collective, or copies for symmetric memory."""
        trace, calls, found = self.trace, self._calls, np.zeros(len(self.trace), np.bool_)
        if not calls.any():
            return found
        symmetric, copies = trace.named(SYMMETRIC), self._hosts & trace.named(COPIES)
        events = np.flatnonzero(self._on_device)
        inner, in_symmetric = self._operators(events, calls & symmetric)
        known = np.maximum(inner, 0)
        moves = (calls & ~trace.named(NO_CALLS))[known]
        found[events] = (inner >= 0) & moves & (self._movable[events] | symmetric[known])
        by_copy = (inner >= 0) & in_symmetric & (copies[known] | symmetric[known])
        found[events] |= by_copy & (trace.kind[events] == EventKind.COPY) | by_copy & copies[known]
        return found

    @cached_property
    def _hosts(self) -> Mask:
        return self.trace.of_kind(EventKind.OP, EventKind.ANNOTATION)

    @cached_property
    def _calls(self) -> Mask:
        return self._hosts & (self.trace.named(CALLS) | self.trace.named(OWN_CALLS))

    @cached_property
    def call_of(self) -> Ints:
        """Return the outermost call of a collective in which each event was launched, -1 for none. [event]"""
        return self.trace.around(self._calls, self.trace.launch_of)

    def _operators(self, events: Ints, symmetric: Mask) -> tuple[Ints, Mask]:
        """Return each event's innermost operator within a call, and whether the call is of SYMMETRIC."""
        trace, launch = self.trace, self.trace.launch_of[events]
        within = trace.around(self._calls, launch) >= 0
        nested = self._hosts & (trace.around(self._calls, np.arange(len(trace))) >= 0)
        inner = np.where(within, trace.around(nested, launch, inner=True), -1)
        in_symmetric = within & (trace.around(symmetric, launch) >= 0)
        alone = (inner < 0) & (launch < 0)
        inner[alone] = self._by_external_id(events[alone])
        in_symmetric[alone] = symmetric[np.maximum(inner[alone], 0)] & (inner[alone] >= 0)
        return inner, in_symmetric

    def _by_external_id(self, events: Ints) -> Ints:
        """Return operators by the events' numbers, else -1: older versions write the correlation there."""
        trace = self.trace
        operators = np.flatnonzero(self._hosts & (trace.external_id >= 0))
        found = having(operators, trace.external_id[operators], trace.external_id[events])
        return np.where(trace.external_id[events] == trace.correlation[events], -1, found)
