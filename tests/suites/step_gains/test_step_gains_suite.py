"""The step_gains suite: each variant against what bounds it, or against the model asked another way."""

import pytest

from harness.config.run import load
from harness.records import Unavailable
from suites.seconds import step_gains
from suites.seconds.optimizations import attention, exposed, gpu, link, precision, zero_3
from suites.seconds.step_gains import changed
from suites.training.step_time.questions import answers

WORKLOADS = load(["suite=step_gains"])[0].workloads
LARGE = [name for name in WORKLOADS if name != "gemma_12b_16"]


def built(name):
    return step_gains.build(WORKLOADS[name], 1)


def values(subject):
    return {one.metric: one.value for one in step_gains.sample(subject) if hasattr(one, "metric")}


def row(given):
    """Return the step as others publish theirs."""
    layout = {"sharding": "distributed optimizer", "recompute": "none", **given.layout}
    model = {**given.sizes, "mlp": "swiglu" if given.sizes["gated_mlp"] else "gelu"}
    return {
        "id": "step", "kind": "step", "framework": "NeMo Megatron", "model": model, "device": given.device,
        "gpus": given.gpus, "gpus_per_node": given.gpus_per_node, "seq_len": given.seq_len,
        "global_batch_size": given.global_batch_size, "precision": given.precision,
        "attention": given.attention, "layout": layout,
    }  # fmt: skip


@pytest.mark.parametrize("name", LARGE)
def test_a_step_is_what_the_model_answers_and_narrow_matmuls_gain_at_most_their_rate(name):
    """Of the network that a question stands for where it names none: 400 Gbit/s per GPU."""
    subject = built(name)
    (said,) = answers([row(subject.workload)])
    bf16, fp8 = values(subject), values(precision(built(name), "fp8"))
    assert bf16["time"] == pytest.approx(said["step_s"])
    step_gains.check(subject)
    assert 1 < bf16["time"] / fp8["time"] < 2
    for one in (bf16, fp8):
        assert sum(value for key, value in one.items() if key.startswith("share/")) == pytest.approx(1.0)
    assert fp8["share/attention"] > bf16["share/attention"]
    assert fp8["share/matmul"] < bf16["share/matmul"]


def test_the_slow_link_takes_as_long_as_the_bytes_that_have_to_cross_it():
    """At the least half of the weights, three times, per node of eight: 12.2 B of them in two bytes."""
    slow, fast = (values(link(built("gemma_12b_16"), network_B_per_s=1.25e9 / n))["time"] for n in (8, 4))
    least_s = 3 * 0.5 * 12.2e9 * 2 / 1.25e9
    assert least_s < slow < 4 * least_s
    assert slow / 2 < fast < slow


def test_what_a_layout_does_not_have_is_refused():
    fewer = changed(built("llama_70b_1024"), global_batch_size=512)
    for refused, said in (
        (lambda: exposed(built("llama_8b_64")), "tp 1"),
        (lambda: attention(built("llama_70b_1024"), "none"), "cp=2: explicit attention has no context"),
        (lambda: zero_3(fewer), "global_batch_size=512 is no multiple of dp"),
        (lambda: step_gains.build({**WORKLOADS["llama_70b_1024"], "gpus": 1000}, 1), "divide the 1000 GPUs"),
    ):
        with pytest.raises(Unavailable, match=said):
            refused()
    layout = zero_3(built("llama_70b_1024")).workload.layout
    assert (layout.get("tp", 1), layout.get("pp", 1)) == (1, 1)


def test_a_token_costs_the_hour_over_what_it_makes():
    own = values(built("llama_405b_2048"))
    tokens_per_hour = 3600 * own["tokens_per_s_per_device"]
    assert own["cost_per_token"] == pytest.approx(1.42 / tokens_per_hour)
    assert own["run_cost"] == pytest.approx(15e12 * 1.42 / tokens_per_hour)
    other = values(gpu(built("llama_405b_2048"), "gb200", 4, 50e9, 2.36, 4))
    speed = other["tokens_per_s_per_device"] / own["tokens_per_s_per_device"]
    assert other["cost_per_token"] / own["cost_per_token"] == pytest.approx(2.36 / 1.42 / speed)
