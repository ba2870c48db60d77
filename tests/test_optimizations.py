"""Every optimization on a tiny workload: its result is the baseline's, and a wrong one is caught."""

from dataclasses import replace
from importlib import import_module

import pytest

from harness.config import load
from harness.records import WrongResult

RUN = load(["suite=memory"])[0]
TRAINED = [name for name, workload in RUN.workloads.items() if workload["train"]]


@pytest.mark.parametrize("variant", RUN.variants, ids=lambda variant: variant.name)
@pytest.mark.parametrize("workload", ["gpt_25m_sgd", "llama_40m_accumulate"])
def test_an_optimization_gives_what_the_baseline_gives(variant, workload):
    suite, module = import_module("suites.memory"), import_module(f"suites.memory.{variant.module}")
    subject = suite.build(RUN.workloads[workload], seed=1)
    subject = module.apply(subject, module.Settings(**variant.settings))
    suite.check(subject)


WRONG = {
    "negated": lambda gradient: -gradient,
    "zeroed": lambda gradient: 0 * gradient,
    "three times": lambda gradient: 3 * gradient,
}
ONE_DEVICE = [variant for variant in RUN.variants if not variant.name.startswith(("fsdp2", "tensor", "zero"))]


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("variant", ONE_DEVICE, ids=lambda variant: variant.name)
def test_wrong_gradients_are_caught(variant, wrong):
    suite, module = import_module("suites.memory"), import_module(f"suites.memory.{variant.module}")
    subject = module.apply(suite.build(RUN.workloads["llama_12m"], 1), module.Settings(**variant.settings))

    def spoil(model):
        for parameter in model.parameters():
            parameter.register_hook(WRONG[wrong])
        return model

    with pytest.raises(WrongResult, match="loss of step"):
        suite.check(replace(subject, wrap=(*subject.wrap, spoil)))


def test_every_workload_is_described_by_its_conditions():
    suite = import_module("suites.memory")
    for workload in RUN.workloads.values():
        said = suite.conditions(suite.build(workload, seed=0))
        assert said["optimizer"] == workload["optimizer"]
        assert all(isinstance(value, str) for value in said.values())


def test_the_sum_of_a_tied_embeddings_gradients_is_no_write_in_place():
    """The output layer's gradient is a view, so its storage is shared, and autograd adds out of place."""
    suite = import_module("suites.memory")
    shape = {
        "num_hidden_layers": 1,
        "hidden_size": 64,
        "intermediate_size": 64,
        "vocab_size": 20_000,
        "micro_batch_size": 1,
        "seq_len": 8,
        "dropout": 0.0,
    }
    subject = suite.build({**RUN.workloads["gpt_5m"], **shape}, seed=1)
    walked = suite.peak_of_rank(subject)
    measured = {r.value for r in suite.measured(subject, {}) if getattr(r, "metric", "") == "peak_memory"}
    assert walked.place.operation == "aten.add.Tensor"
    assert all(abs(walked.peak_B / peak_B - 1) < 5e-4 for peak_B in measured)
