"""Every variant of the memory suite on a tiny workload: its losses are the baseline's."""

from dataclasses import replace
from importlib import import_module

import pytest

from harness.config.run import load
from harness.records import WrongResult

RUN = load(["suite=memory"])[0]
suite = import_module("suites.memory.suite")


def a_subject(variant, workload, **changes):
    subject = suite.build({**RUN.workloads[workload], **changes}, seed=1)
    return suite.apply_techniques(subject, variant.techniques)


WRONG = {
    "negated": lambda gradient: -gradient,
    "zeroed": lambda gradient: 0 * gradient,
    "three times": lambda gradient: 3 * gradient,
}
SHARED = ("fsdp2", "tensor", "context", "pipeline", "zero")
ONE_DEVICE = [variant for variant in RUN.variants if not variant.name.startswith(SHARED)]


SPOILT = [(variant, list(WRONG)[number % len(WRONG)]) for number, variant in enumerate(ONE_DEVICE)]
"""Each variant in one way, so that each way is that of several."""


@pytest.mark.parametrize(("variant", "wrong"), SPOILT, ids=lambda value: getattr(value, "name", value))
def test_wrong_gradients_are_caught(variant, wrong):
    subject = a_subject(variant, "llama_12m")

    def spoil(model, resources):
        for parameter in model.parameters():
            parameter.register_hook(WRONG[wrong])
        return model

    step = replace(subject.step, wraps=(*subject.step.wraps, spoil))
    with pytest.raises(WrongResult, match="loss of update"):
        suite.check(replace(subject, step=step))
