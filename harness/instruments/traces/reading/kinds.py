"""What the categories of Kineto are, of NVIDIA, AMD, Intel, MTIA and backends of others."""

from __future__ import annotations

import re

from harness.instruments.traces.reading.trace import EventKind

KINDS = {
    "cpu_op": EventKind.OP,
    "operator": EventKind.OP,  # PyTorch 1.8 to 1.11
    "user_annotation": EventKind.ANNOTATION,
    "runtime": EventKind.LAUNCH,  # PyTorch 1.8 to 1.11, and where accelerators share one name
    "driver": EventKind.LAUNCH,
    "kernel": EventKind.KERNEL,
    "concurrent_kernel": EventKind.KERNEL,
    "mtia_ccp_events": EventKind.KERNEL,
    "hpu_op": EventKind.KERNEL,
    "memcpy": EventKind.COPY,
    "memset": EventKind.COPY,
    "gpu_user_annotation": EventKind.DEVICE_ANNOTATION,
    "python_function": EventKind.PYTHON,
}
"""Category in lower case -> kind."""

ENDINGS = {
    "_runtime": EventKind.LAUNCH,  # of cuda, hip, xpu, mtia, privateuse1 and others
    "_driver": EventKind.LAUNCH,
    "_kernel": EventKind.KERNEL,
    "_memcpy": EventKind.COPY,
    "_memset": EventKind.COPY,
    "_user_annotation": EventKind.DEVICE_ANNOTATION,
}
"""How categories of accelerators end, after the accelerator's name."""

HOST_RUNTIMES = ("glow_runtime",)
"""Categories with such an ending that launch nothing on a device."""

NO_WORK = ("trace", "overhead", "sync", "event", "range", "insight", "counters", "runtime")
"""How categories end that have a stream and do no work: waits (cuda_sync), and overhead of the profiler."""

ON_DEVICE = (EventKind.KERNEL, EventKind.COPY)

COPY_BY_NAME = re.compile(r"^(dma_|(hip)?mem(cpy|set)\b)", re.IGNORECASE)
"""Kernels of accelerators without a category of their own for copies (MTIA)."""

WAIT_BY_NAME = re.compile(r"^event_(wait|record)$")
"""Entries on a stream of MTIA in which the device waits for another stream, or marks a time."""


def kind_of(category: str) -> EventKind:
    """Return what events of a category are; `EventKind.OTHER` for those that are not read."""
    category = category.lower()
    if category in HOST_RUNTIMES:
        return EventKind.OTHER
    ending = next((kind for end, kind in ENDINGS.items() if category.endswith(end)), EventKind.OTHER)
    return KINDS.get(category, ending)


def is_unread(category: str) -> bool:
    """Return whether events of a category with a stream are work of a device that is not read."""
    category = category.lower()
    return kind_of(category) == EventKind.OTHER and category != "" and not category.endswith(NO_WORK)


def kind_of_kernel(name: str) -> EventKind:
    """Return what an event in a category of kernels is by its name: a kernel, a copy or a wait."""
    if COPY_BY_NAME.match(name):
        return EventKind.COPY
    return EventKind.OTHER if WAIT_BY_NAME.match(name) else EventKind.KERNEL
