"""The step_gains suite: each variant against what bounds it, or against the model asked another way."""

from __future__ import annotations

import pytest

from harness.config.code_fingerprint import ROOT
from harness.config.run import load
from harness.records import Unavailable
from harness.sweep.store import read_records
from suites.seconds import step_gains
from suites.seconds.optimizations import attention, exposed, gpu, link, precision, zero_3
from suites.seconds.step_gains import Subject, changed
from suites.seconds.workload import StepGainsWorkload
from suites.training.step_time.questions import answers

WORKLOADS = load(["suite=step_gains"])[0].workloads
LARGE = [name for name in WORKLOADS if name != "gemma_12b_16"]
WITHOUT_CP = ("gpt3_175b_1024", "nemotron_340b_1024", "llama_8b_64_tp", "llama_70b_1024_tp")


def built(name: str) -> Subject:
    return step_gains.build(WORKLOADS[name], 1)


def values(subject: Subject) -> dict[str, float]:
    return {one.metric: one.value for one in step_gains.sample(subject) if hasattr(one, "metric")}


def row(given: StepGainsWorkload) -> dict[str, object]:
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
def test_a_step_is_what_the_model_answers_to_the_same_question(name: str):
    """Of the network that a question stands for where it names none: 400 Gbit/s per GPU."""
    subject = built(name)
    (said,) = answers([row(subject.workload)])
    assert values(subject)["time"] == pytest.approx(said["step_s"])
    step_gains.check(subject)


def test_the_slow_link_takes_as_long_as_the_bytes_that_have_to_cross_it():
    """At the least half of the weights, three times, per node of eight: 12.2 B of them in two bytes."""
    slow = link(built("gemma_12b_16"), network_B_per_s=1.25e9 / 8)
    seconds = values(slow)["time"]
    least_s = 3 * 0.5 * 12.2e9 * 2 / 1.25e9
    assert least_s < seconds < 4 * least_s
    faster = link(built("gemma_12b_16"), network_B_per_s=1.25e9 / 4)
    assert seconds / 2 < values(faster)["time"] < seconds


def test_narrow_matmuls_gain_at_most_their_rate():
    for name in LARGE:
        gain = values(built(name))["time"] / values(precision(built(name), "fp8"))["time"]
        assert 1 < gain < 2, name


def scores_of(name: str) -> float:
    """Return the scores that a rank computes per step, in all of its layers and micro-batches."""
    given, layout = built(name).workload, built(name).workload.layout
    layers = given.sizes["num_hidden_layers"] / layout.get("pp", 1)
    dp = given.gpus / layout["tp"] / layout.get("pp", 1)
    heads = given.sizes["num_attention_heads"] / layout["tp"]
    return float(given.global_batch_size / dp * layers * heads * given.seq_len**2)


@pytest.mark.parametrize("name", WITHOUT_CP)
def test_explicit_attention_takes_as_long_as_its_scores_cross_the_memory(name: str):
    """22 bytes per score, 8 more with recompute, at 40 to 100 % of the datasheet's rate."""
    fused = values(built(name))
    kept, again = (values(attention(built(name), one)) for one in ("none", "selective"))
    assert fused["time"] < kept["time"] < again["time"]
    least_s = scores_of(name) / 3.35e12
    fused_s = fused["share/attention"] * fused["time"]
    assert 22 * least_s < kept["time"] - fused["time"] + fused_s < 22 * least_s / 0.4
    assert 8 * least_s < again["time"] - kept["time"] < 8 * least_s / 0.4


def test_scores_decide_what_fits():
    """Two bytes per score that a pipeline rank keeps; recomputed they leave one layer's."""
    for name, fits in zip(WITHOUT_CP, (1.0, 0.0, 0.0, 0.0), strict=True):
        fused = values(built(name))
        kept, again = (values(attention(built(name), one)) for one in ("none", "selective"))
        assert (fused["fits"], kept["fits"], again["fits"]) == (1.0, fits, 1.0), name
        assert again["peak_memory"] < 1.1 * fused["peak_memory"]
    given = built("llama_8b_64_tp").workload
    scores_B = 2 * 32 / 2 * given.seq_len**2 * 32  # all layers are on one rank, and one micro-batch waits
    more = (
        values(attention(built("llama_8b_64_tp"), "none"))["peak_memory"]
        - values(built("llama_8b_64_tp"))["peak_memory"]
    )
    assert more == pytest.approx(scores_B, rel=0.03)


def test_explicit_attention_has_no_context_parallelism():
    with pytest.raises(Unavailable, match="cp=2: explicit attention has no context parallelism"):
        attention(built("llama_70b_1024"), "none")


def test_overlap_gains_where_there_are_tensor_parallel_ranks():
    for name in ("llama_70b_1024", "llama_405b_2048"):
        assert values(exposed(built(name)))["time"] > values(built(name))["time"]
    with pytest.raises(Unavailable, match="tp 1"):
        exposed(built("llama_8b_64"))


def test_shares_add_up_and_narrow_matmuls_leave_more_to_the_rest():
    for name in LARGE:
        bf16, fp8 = values(built(name)), values(precision(built(name), "fp8"))
        for one in (bf16, fp8):
            assert sum(value for key, value in one.items() if key.startswith("share/")) == pytest.approx(1.0)
        assert fp8["share/attention"] > bf16["share/attention"]
        assert fp8["share/matmul"] < bf16["share/matmul"]


def test_zero_3_needs_a_sequence_per_gpu():
    fewer = changed(built("llama_70b_1024"), global_batch_size=512)
    with pytest.raises(Unavailable, match="global_batch_size=512 is no multiple of dp"):
        zero_3(fewer)
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


def test_what_does_not_divide_is_refused():
    with pytest.raises(Unavailable, match="does not divide the 1000 GPUs"):
        step_gains.build({**WORKLOADS["llama_70b_1024"], "gpus": 1000}, 1)


def test_committed_predictions_are_calculated_again():
    for record in read_records(ROOT / "results/reference/step_gains"):
        if record.cell.optimization == "baseline":
            now = values(step_gains.build(record.cell.config["workload"], 1))
            kept = {one.metric: one.samples[0] for one in record.measurements}
            assert now == pytest.approx(kept, rel=1e-9), record.cell.workload
