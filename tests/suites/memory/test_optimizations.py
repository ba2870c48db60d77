"""Every variant of the memory suite on a tiny workload: its losses are the baseline's."""

from dataclasses import replace
from importlib import import_module

import pytest

from harness.config.run import load
from harness.records import WrongResult
from harness.sweep.plan import is_planned
from suites.training.correctness import losses_on_one_batch

RUN = load(["suite=memory"])[0]
suite = import_module("suites.memory.suite")


def a_subject(variant, workload, **changes):
    subject = suite.build({**RUN.workloads[workload], **changes}, seed=1)
    return suite.apply_techniques(subject, variant.techniques)


PLANNED = [
    pytest.param(workload, variant, id=f"{workload}-{variant.name}")
    for workload in ("gpt_25m_sgd", "llama_40m_accumulate")
    for variant in RUN.variants
    if is_planned(RUN, variant, workload, gpu=False)
]


@pytest.mark.parametrize(("workload", "variant"), PLANNED)
def test_a_variant_gives_what_the_baseline_gives(variant, workload):
    suite.check(a_subject(variant, workload))


WRONG = {
    "negated": lambda gradient: -gradient,
    "zeroed": lambda gradient: 0 * gradient,
    "three times": lambda gradient: 3 * gradient,
}
SHARED = ("fsdp2", "tensor", "context", "pipeline", "zero")
ONE_DEVICE = [variant for variant in RUN.variants if not variant.name.startswith(SHARED)]


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("variant", ONE_DEVICE, ids=lambda variant: variant.name)
def test_wrong_gradients_are_caught(variant, wrong):
    subject = a_subject(variant, "llama_12m")

    def spoil(model, resources):
        for parameter in model.parameters():
            parameter.register_hook(WRONG[wrong])
        return model

    step = replace(subject.step, wraps=(*subject.step.wraps, spoil))
    with pytest.raises(WrongResult, match="loss of update"):
        suite.check(replace(subject, step=step))


@pytest.mark.parametrize("changed", [{"learning_rate": 0.1}, {"weight_decay": 0.9}, {"adam_epsilon": 1.0}])
def test_a_setting_of_the_optimizer_reaches_the_baselines_step(changed):
    shape = {
        "num_hidden_layers": 1,
        "hidden_size": 32,
        "intermediate_size": 64,
        "vocab_size": 67,
        "seq_len": 16,
    }

    def losses(**changes):
        return losses_on_one_batch(a_subject(RUN.variants[0], "llama_12m", **shape, **changes).step)

    first, *usual = losses()
    assert losses() == (first, *usual)
    ours = losses(**changed)
    assert ours[0] == first
    assert all(one != other for one, other in zip(ours[1:], usual, strict=True))


def test_every_workload_is_described_by_its_conditions():
    for workload in RUN.workloads.values():
        said = suite.conditions(suite.build(workload, seed=0))
        assert said["optimizer"] == workload["optimizer"]
        assert all(isinstance(value, str) for value in said.values())


def test_a_field_that_nothing_has_is_refused():
    with pytest.raises(TypeError, match="'layers'"):
        suite.build({**RUN.workloads["gpt_5m"], "layers": 3}, seed=0)


def test_the_sum_of_a_tied_embeddings_gradients_is_no_write_in_place():
    """The output layer's gradient is a view, so its storage is shared, and autograd adds out of place."""
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
    dry = suite.peak_of_rank(subject)
    measured = {r.value for r in suite.measured(subject, {}) if getattr(r, "metric", "") == "peak_memory"}
    assert dry.place.operation == "aten.add.Tensor"
    assert measured
    assert all(abs(dry.peak_B / peak_B - 1) < 5e-4 for peak_B in measured)


def test_the_step_of_a_subject_is_made_again_from_plain_data():
    for variant in RUN.variants:
        stages = 2 if "pipeline" in variant.name else 1
        changes = {"cp_size": 2, "pp_size": stages, "gradient_accumulation_steps": stages}
        if "expert" in variant.name:
            changes |= {"num_experts": 4, "ep_size": 2}
        step = a_subject(variant, "llama_12m", seq_len=16, **changes).step
        again = suite.techniques.build_step(**step.described)
        assert again.described == step.described
        assert replace(again, wraps=(), make_optimizer=None) == replace(step, wraps=(), make_optimizer=None)
