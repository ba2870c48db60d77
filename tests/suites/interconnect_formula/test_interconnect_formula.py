"""What the interconnect_formula suite calculates, compared with sums done by hand."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from variants import applied

from harness.config.run import load
from harness.records import Origin, Unavailable, WrongResult
from suites.interconnect import interconnect_formula
from suites.interconnect.interconnect_formula import model_size

RUN = load(["suite=interconnect_formula"])[0]
VARIANTS = {variant.name: variant for variant in RUN.variants}


def subject_of(workload, name):
    fields = RUN.workloads[workload] if isinstance(workload, str) else workload
    return applied("interconnect_formula", VARIANTS[name], interconnect_formula.build(fields, 1))


def values_of(workload, name):
    """Return values by metric and method; `workload`: a name, or its fields."""
    subject = subject_of(workload, name)
    interconnect_formula.check(subject)
    readings = list(interconnect_formula.sample(subject))
    assert {one.origin for one in readings} == {Origin.CALCULATED}
    return {(one.metric, one.method): one.value for one in readings if one.method != "band"}


def test_twelve_billion_over_ethernet():
    """Half of 24.4 GB comes from the other node, three times per step."""
    found = values_of("gemma_12b", "baseline")
    assert found["time", "at best"] == pytest.approx(3 * 12.2e9 / 1.25e9)
    assert values_of("gemma_12b", "link.3200g")["speedup", "at best"] == pytest.approx(29.28 / 4.4)


def test_latency_counts_three_times_a_layer():
    workload = {**RUN.workloads["gemma_12b"], "latency_s": 1e-3}
    found = values_of(workload, "baseline")
    assert found["time", "at best"] == pytest.approx(3 * 12.2e9 / 1.25e9 + 3 * 48 * 1e-3)


def test_four_batches_to_an_update_reduce_once():
    found = values_of("gemma_12b", "gradient_accumulation.4")
    assert found["time", "at best"] == pytest.approx(12.2e9 * (1 + 1 + 1 / 4) / 1.25e9)
    assert found["speedup", "at best"] == pytest.approx(3 / 2.25)


def test_of_shards_within_nodes_gradients_alone_cross():
    """Each node's sum of 24.4 GB is halved, exchanged and gathered: 12.2 GB each way, twice."""
    found = values_of("gemma_12b", "hybrid_shard")
    assert found["time", "at best"] == pytest.approx(2 * 12.2e9 / 1.25e9)


def test_hybrid_shards_with_sixteen_batches_to_an_update():
    """Each node sends half of its 24.4 GB of gradients twice, once in sixteen micro-batches."""
    found = values_of("gemma_12b", "hybrid_shard_accumulated.16")
    assert found["time", "at worst"] == pytest.approx(4.4 - 15 / 16 * 73.2 / 400 + 24.4 / 16 / 1.25)
    assert found["tokens_per_update", ""] == 16 * 16 * 4096
    assert found["state_memory", ""] == pytest.approx(16 * 12.2e9 / 8)


@pytest.mark.parametrize("name", ["hybrid_shard", "hybrid_shard_accumulated.4"])
def test_shards_that_a_node_cannot_hold_are_refused(name):
    with pytest.raises(
        Unavailable, match="140 GB of states for each of a node's 8 devices, which have 85 GB"
    ):
        values_of("dense_70b", name)
    larger = {**RUN.workloads["dense_70b"], "device_memory_B": 192e9, "usable_memory_B": None}
    assert values_of(larger, name)["room", ""] == 192e9


def test_a_model_that_no_sharding_fits_is_refused():
    with pytest.raises(Unavailable, match="200 GB of states for each of all 16 devices, which have 85 GB"):
        values_of({**RUN.workloads["dense_70b"], "parameters": 200e9}, "baseline")


def test_the_compute_rate_of_the_published_run_is_stated():
    """6 x 7e9 parameters x 4,096 tokens at the rate of 6 x 12.2e9 x 4,096 in 4.4 s."""
    found = values_of("dense_7b", "baseline")
    rate = 6 * 12.2e9 * 4096 / 4.4
    assert found["computation", "at best"] == pytest.approx(6 * 7e9 * 4096 / rate)
    assert found["compute_rate", "at best"] == pytest.approx(rate)
    assert found["compute_share", "at best"] == pytest.approx(rate / 989.4e12)


def run_of(*words):
    (run,) = load(["suite=interconnect_formula", *words])
    return run


def test_a_workload_of_ones_own_computes_at_the_assumed_share_of_the_gpus_peak():
    run = run_of("+suite.workloads.mine={parameters: 7e9, link_B_per_s: 3.125e9}", "workloads=[mine]")
    found = values_of(run.workloads["mine"], "hybrid_shard_accumulated.16")
    compute_s = 6 * 7e9 * 2048 / (0.4 * 989.4e12)
    assert found["computation", "at best"] == pytest.approx(compute_s)
    assert found["time", "at worst"] == pytest.approx(compute_s + 2 * 7e9 / 16 / 3.125e9)
    slow_s = 6 * 7e9 * 2048 / (0.2 * 989.4e12)
    assert found["time", "at worst, MFU 20%"] == pytest.approx(slow_s + 2 * 7e9 / 16 / 3.125e9)


@pytest.mark.parametrize("word", ["micro_batch_size=3", "seq_len=12288", "mfu=0.4", "peak_FLOP_per_s=1e14"])
def test_every_field_of_the_computation_is_read(word):
    own = "+suite.workloads.mine={parameters: 7e9, mfu: 0.2}"
    before = values_of(run_of(own).workloads["mine"], "baseline")
    after = values_of(run_of(own, f"suite.workloads.mine.{word}").workloads["mine"], "baseline")
    assert before["computation", "at best"] != after["computation", "at best"]


def test_another_device_has_its_own_peak_and_memory():
    own = "+suite.workloads.mine={parameters: 7e9}"
    found = values_of(run_of(own, "hardware=a100_80gb").workloads["mine"], "baseline")
    assert found["compute_rate", "at best"] == pytest.approx(0.4 * 312e12)
    with pytest.raises(Unavailable, match=r"the peak of 80 GB GPU is unknown; choose a hardware="):
        values_of(run_of(own, "hardware=gpu_80gb").workloads["mine"], "baseline")


def test_the_network_matters_no_more_from_the_stated_rates_on():
    """Of hybrid sharding: FSDP sends 3 x 7 GB at best and 3 x 14 x 15/16 at worst, hybrid 14 at both."""
    run = run_of("+suite.workloads.mine={parameters: 7e9}")
    found = values_of(run.workloads["mine"], "hybrid_shard")
    compute_s = 6 * 7e9 * 2048 / (0.4 * 989.4e12)
    assert found["gain_ends_rate", "at best"] == pytest.approx(21e9 / (1.05 * compute_s))
    worst = (39.375e9 - 1.05 * 14e9) / (0.05 * compute_s)
    assert found["gain_ends_rate", "at worst"] == pytest.approx(worst)


LLAMA_8B = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": False,
    "max_position_embeddings": 131072,
}  # fmt: skip


def test_the_parameters_of_a_config_are_counted():
    """Llama-3.1-8B by hand: embeddings, attention, MLP, norms."""
    layer = 4096 * (4096 + 1024 + 1024 + 4096) + 3 * 4096 * 14336 + 2 * 4096
    every = 2 * 128256 * 4096 + 32 * layer + 4096
    assert model_size(LLAMA_8B) == (every, every, 32)
    tied = {**LLAMA_8B, "tie_word_embeddings": True}
    assert model_size(tied).parameters == every - 128256 * 4096


def test_of_a_mixture_a_token_uses_the_experts_that_it_is_sent_to():
    """Mixtral 8x7B: 46.7 B, of which a token uses 12.9 B (arXiv 2401.04088)."""
    mixtral = {
        **LLAMA_8B, "model_type": "mixtral", "vocab_size": 32000, "num_local_experts": 8,
        "num_experts_per_tok": 2,
    }  # fmt: skip
    size = model_size(mixtral)
    assert [round(one / 1e9, 1) for one in (size.parameters, size.active)] == [46.7, 12.9]
    expert = 3 * 4096 * 14336
    assert size.parameters - size.active == 32 * 6 * expert


def test_a_mixture_computes_by_its_active_parameters_and_sends_all():
    own = {**RUN.workloads["dense_7b"], "mfu": 0.4}
    dense, mixture = (values_of({**own, "active_parameters": n}, "baseline") for n in (None, 7e8))
    assert mixture["computation", "at best"] == pytest.approx(dense["computation", "at best"] / 10)
    assert mixture["time", "at best"] == dense["time", "at best"]  # it waits for the link


@pytest.mark.parametrize("suite", ["interconnect", "interconnect_formula"])
def test_a_config_is_answered_by_formulas(tmp_path: Path, caplog, suite):
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(LLAMA_8B))
    caplog.set_level("INFO", "harness.sweep.progress")
    words = [f"suite={suite}", f"suite.workload_from={file}", "suite.hf_defaults.link_B_per_s=3.125e9"]
    (run,) = load([*words, "suite.hf_defaults.nodes=4", "suite.hf_defaults.seq_len=8192"])
    assert run.suite == "interconnect_formula"
    (workload,) = run.workloads.values()
    subject = interconnect_formula.build(workload, 1)
    assert (subject.link_B_per_s, workload["nodes"], workload["seq_len"]) == (3.125e9, 4, 8192)
    assert round(subject.parameters / 1e9, 2) == 8.03
    said = "suite interconnect_formula calculates the steps of your own model; interconnect runs none"
    assert (said in caplog.text) == (suite == "interconnect")


def test_layers_that_a_config_leaves_to_its_class_are_counted(tmp_path: Path):
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({name: one for name, one in LLAMA_8B.items() if name != "num_hidden_layers"}))
    (workload,) = run_of(f"suite.workload_from={file}").workloads.values()
    assert interconnect_formula.build(workload, 1).workload.num_hidden_layers == 32


def test_a_stated_number_of_parameters_replaces_the_count(tmp_path: Path):
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(LLAMA_8B))
    run = run_of(f"suite.workload_from={file}", "suite.hf_defaults.parameters=7e9")
    assert interconnect_formula.build(run.workloads["mine"], 1).parameters == 7e9


@pytest.mark.parametrize("name", ["baseline", "hybrid_shard"])
def test_a_step_that_sends_too_little_is_caught(monkeypatch, name):
    """Here one that reduces nothing."""
    subject = subject_of("gemma_12b", name)
    interconnect_formula.check(subject)
    silent = replace(subject.exchange, element_B=0.0, gradient_B=0.0)
    monkeypatch.setattr(type(subject), "exchange", silent)
    with pytest.raises(WrongResult, match=r"^a step takes .* s; no algorithm takes less than .* s$"):
        interconnect_formula.check(subject)


@pytest.mark.parametrize("workload", RUN.workloads)
def test_the_best_case_is_no_slower_than_the_worst(workload):
    found = values_of(workload, "baseline")
    assert 0 < found["time", "at best"] <= found["time", "at worst"]
    assert found["enough_rate", "at best"] <= found["enough_rate", "at worst"]


def test_cells_of_a_workload_share_a_process():
    from harness.sweep.plan import plan

    groups = plan(RUN, "env", lambda variant: "code")
    assert [{cell.workload for cell in group.cells} for group in groups] == [{one} for one in RUN.workloads]
