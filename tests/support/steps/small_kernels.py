"""Operations at tiny shapes, and variants applied to them: shared by the tests of the kernels suite."""

import variants

from harness.config.run import load
from harness.records import HostInfo, Unavailable
from suites.kernels import suite as kernels
from suites.kernels.workload import Workload

RUN = load(["suite=kernels"])[0]
ARMS = {variant.name: variant for variant in RUN.variants}
HOST = HostInfo("cpu", "CPU", 1, 2**34, 2)

SMALL = {
    "micro_batch_size": 2,
    "seq_len": 6,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_size": 16,
    "vocab_size": 11,
}
SMALL |= {"intermediate_size": 12, "tensors": 3}
NO_BACKWARD = ("adamw", "copy")
HOSTS_OWN = ("copy", "matmul")


def workload_of(operation, **changes):
    fields = {"operation": operation, **SMALL, "backward": operation not in NO_BACKWARD, **changes}
    return {k: v for k, v in fields.items() if k in Workload.__dataclass_fields__}


def subject_of(operation, **changes):
    return kernels.build(workload_of(operation, **changes), seed=1)


def applied(variant, subject):
    if reason := variants.unavailable("kernels", ARMS[variant], HOST):
        raise Unavailable(reason)
    return checked(variants.applied("kernels", ARMS[variant], subject))


def checked(subject):
    session = kernels.prepare(subject)
    kernels.check(session)
    return session
