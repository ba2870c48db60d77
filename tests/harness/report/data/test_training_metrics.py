"""What training steps are compared by, and how a changed workload is named."""

import pytest
from synthetic import made

from harness.config.optimizations import workloads_of
from harness.config.run import load
from harness.records import Record
from harness.report import gather
from harness.report.results import ResultIndex
from harness.report.training import Datasheet, PeakRates, add_training_metrics, peaks
from harness.sweep.environment import describe
from harness.sweep.store import Store

H100 = PeakRates((Datasheet("*H100*", "NVIDIA H100", {"bf16": 1000e12, "fp32": 50e12}),), {"fp32": 2e11})
GPU = {"device": "cuda", "device_name": "NVIDIA H100 80GB HBM3", "precision": "bf16", "ranks": "8"}
CPU = {"device": "cpu", "precision": "fp32", "ranks": "2"}


def step(conditions: dict[str, str], **metrics: float) -> Record:
    units = {"time": "s", "peak_memory": "B"}
    values = {"time": 0.5, "tokens_per_step": 32768.0, **metrics}
    figures = {(name, ""): (units.get(name, "1"), "measured", (value,)) for name, value in values.items()}
    return made("step", "baseline", figures, conditions=conditions)


def derived(record: Record, known: PeakRates = H100) -> tuple[ResultIndex, dict[str, float]]:
    index = ResultIndex([record], {})
    add_training_metrics(index, known)
    names = ("tokens_per_s_per_device", "flops_per_s_per_device", "mfu")
    found = {name: index.get("step", "baseline", name, "") for name in names}
    return index, {name: value.median for name, value in found.items() if value}


NODES = {"device": "cpu", "precision": "fp32", "nodes": "2", "ranks_per_node": "4", "parameters": "1000"}


@pytest.mark.parametrize(
    ("record", "tokens_per_s", "flops_per_s", "mfu"),
    [
        # 32,768 / (0.5 x 8) = 8,192 tokens/s; 6 x 7e9 x 32,768 / (0.5 x 8) = 344 TFLOP/s, of 1,000
        (step(GPU, parameters=7e9), 8192.0, 344.064e12, 0.344064),
        # FLOPs that a suite counts come before the rule of six: 2e15 / (0.5 x 8) = 500 TFLOP/s
        (step(GPU, parameters=7e9, flops=2e15), 8192.0, 5e14, 0.5),
        # ranks of one CPU share its measured rate: 6 x 1e6 x 32,768 / 0.5 = 3.93e11 FLOP/s of both, over 2e11
        (step(CPU, parameters=1e6), 32768.0, 1.96608e11, 1.96608),
        # devices are nodes times ranks on each: 32,768 / (0.5 x 2 x 4); the share is of all eight
        (step(NODES), 8192.0, 6 * 1000 * 8192.0, 6 * 1000 * 8192.0 * 8 / 2e11),
    ],
)
def test_each_metric_is_per_device_and_over_the_peak_of_the_device(record, tokens_per_s, flops_per_s, mfu):
    _, found = derived(record)
    expected = {"tokens_per_s_per_device": tokens_per_s, "flops_per_s_per_device": flops_per_s, "mfu": mfu}
    assert found == pytest.approx(expected)


@pytest.mark.parametrize(
    ("record", "missing", "reason"),
    [
        (step(GPU), "flops_per_s_per_device", "neither FLOPs per step nor parameters"),
        (step({**GPU, "device_name": "NVIDIA T4"}, parameters=1e9), "mfu", "no bf16 rate of NVIDIA T4"),
        (step({**GPU, "precision": ""}, parameters=1e9), "mfu", "precision of its matrix products was not"),
    ],
)
def test_what_an_input_lacks_is_a_reason_and_no_number(record, missing, reason):
    index, found = derived(record)
    assert missing not in found
    word, sentence = index.reason("step", "baseline", missing, "")
    assert word == "–"
    assert reason in sentence


def test_the_cpus_peak_is_the_rate_of_a_thread_that_the_sweep_probed_times_the_cores(tmp_path):
    here = describe()._replace(cores=3, matmul_FLOP_per_s={"fp32": 5e10, "bf16": 0.0})
    record = step(CPU)._replace(environment=here.digest)
    with Store(tmp_path) as store:
        store.write_environment(here)
    assert gather("kernels", [record], (), tmp_path).peaks.measured == {"fp32": 1.5e11}
    assert peaks(["not kept", here._replace(matmul_FLOP_per_s={}).to_dict()]).measured == {}


UNKNOWN = """
    NVIDIA H100 80GB HBM3 MIG 1g.10gb, NVIDIA GH200 480GB, NVIDIA H200 NVL, NVIDIA B200 MIG 1g.23gb,
    NVIDIA A100-SXM4-40GB MIG 1g.5gb, NVIDIA RTX 5000 Ada Generation, AMD Instinct MI325X
"""
KNOWN = """
    NVIDIA H100 80GB HBM3, NVIDIA H100 PCIe, NVIDIA H100 NVL, NVIDIA A100-SXM4-40GB, NVIDIA A100-SXM4-80GB,
    NVIDIA B200, NVIDIA GB200, NVIDIA L40S, NVIDIA GeForce RTX 4090, NVIDIA GeForce RTX 5090,
    AMD Instinct MI300X, AMD Instinct MI355X
"""


def test_a_device_of_conf_is_known_by_its_drivers_name_and_one_with_other_rates_has_no_peak():
    known = peaks()
    rate, name = known.of({**GPU, "device_name": "NVIDIA H200"})
    assert (rate, name) == (989.4e12, "NVIDIA H200 SXM's datasheet, dense bf16")
    a100 = known.of({**GPU, "device_name": "NVIDIA A100-SXM4-80GB", "precision": "fp32"})
    assert a100[0] == 19.5e12
    for device in (one.strip() for one in UNKNOWN.split(",")):
        assert known.of({**GPU, "device_name": device}) == f"conf/hardware/ has no bf16 rate of {device}"
    for device in (one.strip() for one in KNOWN.split(",")):
        assert not isinstance(known.of({**GPU, "device_name": device}), str), device


def test_the_rates_of_conf_are_dense_and_in_the_ratio_of_their_widths():
    """Datasheets round: that of the L40S gives 362 for bf16 and 183 for TF32. CDNA 4 has no TF32.

    GPUs before Ampere have neither bf16 nor TF32.
    """
    old = {sheet.name for sheet in peaks().datasheets if "bf16" not in sheet.rates}
    assert old == {"NVIDIA T4", "NVIDIA TITAN RTX", "NVIDIA V100 16GB", "NVIDIA V100 32GB"}
    for sheet in peaks().datasheets:
        if sheet.name not in old:
            tf32 = sheet.rates.get("tf32", sheet.rates["bf16"] / 2)
            assert sheet.rates["bf16"] == sheet.rates["fp16"] == pytest.approx(2 * tf32, rel=0.012), (
                sheet.name
            )
            assert sheet.rates["fp32"] <= tf32, sheet.name


SUITES = ("interconnect_formula", "memory", "cost")


def names_of(run, tmp_path):
    records = [made(name, fields=fields, suite=run.suite) for name, fields in run.workloads.items()]
    return gather(run.suite, records, [], tmp_path).spec.names["workload"]


def test_a_suites_workloads_are_known_without_composing_and_unchanged_ones_keep_their_names(tmp_path):
    for suite in SUITES:
        (run,) = load([f"suite={suite}"])
        assert workloads_of(suite).keys() == run.workloads.keys(), suite
        assert not [name for name in names_of(run, tmp_path).values() if "=" in name]


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["links_7b_100g.link_B_per_s=3e9"], "7 B, 2 nodes, faster link (link_B_per_s=3e+09)"),
        (["llama_7b.micro_batch_size=4", "hardware=h200"], "7B (Llama-2) (micro_batch_size=4)"),
        (["gpt_5m.measurable=false", "suite.workloads.gpt_5m.simulated_device=cuda"], "GPT 5M"),
        (["dense_7b.latency_s=0.001"], "7 B, 2 nodes (latency_s=0.001)"),
        (["owner.prices.rented_2026_07.kind=owned"], "One owner, inputs at their values (prices changed)"),
    ],
)
def test_a_changed_one_is_named_with_its_changes(words, shown, tmp_path):
    """How a value was obtained is left out; a default of the YAML and a table of values are not."""
    name = words[0].partition(".")[0]
    (suite,) = (one for one in SUITES if name in workloads_of(one))
    run = load([f"suite={suite}", f"workloads={name}", f"suite.workloads.{words[0]}", *words[1:]])[0]
    assert shown in names_of(run, tmp_path).values()
