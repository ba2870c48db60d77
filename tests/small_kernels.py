"""Operations at tiny shapes, and arms applied to them: shared by the tests of the kernels suite."""

from __future__ import annotations

from importlib import import_module

from harness.config import load
from harness.records import Host, Unavailable
from suites import kernels
from suites.kernels.subject import Workload

RUN = load(["suite=kernels"])[0]
ARMS = {arm.name: arm for arm in RUN.arms}
HOST = Host("cpu", "CPU", 1, 2**34, 2)

SMALL = {"batch": 2, "seq_len": 6, "hidden": 16, "heads": 2, "kv_heads": 2, "head_size": 16, "vocab": 11}
SMALL |= {"ffn": 12, "tensors": 3}
NO_BACKWARD = ("adamw", "copy")
HOSTS_OWN = ("copy", "matmul")


def workload_of(operation, **changes):
    fields = {"operation": operation, **SMALL, "backward": operation not in NO_BACKWARD, **changes}
    return {k: v for k, v in fields.items() if k in Workload.__dataclass_fields__}


def subject_of(operation, **changes):
    return kernels.build(workload_of(operation, **changes), seed=1)


def applied(arm, subject):
    module = import_module(f"suites.kernels.{ARMS[arm].module}")
    reason = module.unavailable(HOST)
    if reason:
        raise Unavailable(reason)
    subject = module.apply(subject, module.Settings(**ARMS[arm].settings))
    kernels.check(subject, module)
    return subject
