"""The limits suite: the published steps that it has to predict, its readings, and bad input."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from variants import applied

from harness.commands.main import main
from harness.config.run import load
from harness.config.validation import ConfigError
from harness.records import Origin, Reading, WrongResult
from suites.seconds import limits
from suites.seconds.limits import Subject
from suites.seconds.walls import RANGES
from suites.seconds.workload import LimitsWorkload

RUN = load(["suite=limits"])[0]
VARIANTS = {variant.name: variant for variant in RUN.variants}
GATE = [name for name, one in RUN.workloads.items() if one["kind"] == "published" and one["role"] == "gate"]


def subject_of(workload: str, variant: str = "baseline", **changes: Any) -> Subject:
    fields = {**RUN.workloads[workload], **changes}
    subject: Subject = applied("limits", VARIANTS[variant], limits.build(fields, 3))
    return subject


def values_of(subject: Subject) -> dict[tuple[str, str], float]:
    limits.check(subject)
    return {(one.metric, one.method): one.value for one in limits.sample(subject)}


def test_the_gate_has_every_published_point() -> None:
    assert len(GATE) == 9
    gpus = [LimitsWorkload(**RUN.workloads[name]).gpus for name in GATE]
    assert gpus == [512, 768, 4096, 6144, 8192, 10240, 10752, 512, 8192]
    assert [int(name.rpartition("_")[2]) for name in GATE] == gpus


@pytest.mark.parametrize("name", GATE)
def test_a_published_step_is_predicted_within_15_percent(name: str) -> None:
    """With what is shipped; an input that is changed to meet another number fails here."""
    found = values_of(subject_of(name))
    error = found["relative_error", "exposed"]
    assert abs(error) < 0.15
    assert error == pytest.approx(found["time", "calculated"] / found["time", "published"] - 1)


def test_hiding_all_communication_does_not_predict_them() -> None:
    """The assumption of the source's earlier model is optimistic at every point."""
    errors = [values_of(subject_of(name, "overlap"))["relative_error", "hidden"] for name in GATE]
    assert max(errors) < 0
    assert sum(abs(error) < 0.15 for error in errors) == 1


@pytest.mark.parametrize(
    ("name", "gpus", "published"), [("gpt3_10752", 21, 15.3), ("llama_405b_8192", 16, 14.2)]
)
def test_published_scaling_is_that_of_the_record(name: str, gpus: float, published: float) -> None:
    found = values_of(subject_of(name))
    assert found["gpu_ratio", ""] == gpus
    assert found["speedup", "published"] == pytest.approx(published, rel=0.02)
    assert found["speedup", "calculated"] == pytest.approx(published, rel=0.15)
    assert found["scaling_error", "exposed"] == pytest.approx(
        found["speedup", "calculated"] / found["speedup", "published"] - 1
    )


def test_every_workload_of_one_kind_has_the_same_inputs() -> None:
    """Nothing is fitted to a point: what differs is stated by its source."""
    own = {
        "num_hidden_layers", "pipeline_layers", "hidden_size", "num_attention_heads", "num_key_value_heads",
        "intermediate_size", "mlp_matrices", "vocab_size", "tp_size", "pp_size", "virtual_stages", "cp_size",
        "dp_size", "sequences", "seq_len", "published_step_s", "role", "from_dp_size", "from_sequences",
        "from_step_s", "source",
    }  # fmt: skip
    precision = {"peak_FLOP_per_s", "weight_B"}  # bf16 of the steps that are held out
    base = RUN.workloads["gpt3_512"]
    for name, one in RUN.workloads.items():
        if one["kind"] == "published":
            differ = {field for field in base if one[field] != base[field]} - own
            held_out = precision if one["role"] == "held_out" else set()
            assert differ <= {"attention_FLOP_per_s", *held_out}, name
            rates = {2048: 265e12, 8192: 308e12, 131072: 328e12}
            assert one["attention_FLOP_per_s"] == rates[one["seq_len"]]


def test_origins_are_stated() -> None:
    published = {"published"}
    for one in limits.sample(subject_of("gpt3_512")):
        assert one.origin == (Origin.PUBLISHED if one.method in published else Origin.CALCULATED), one


def test_a_run_states_its_layout_and_finishes_in_time() -> None:
    found = values_of(subject_of("run_1e26"))
    assert found["run_time", ""] <= RUN.workloads["run_1e26"]["run_s"]
    layout = [found[f"layout/{name}", ""] for name in ("columns", "rows", "dp", "pp")]
    gpus = 1.0
    for size in layout:
        gpus *= size
    assert found["gpus", ""] == gpus
    flop = 6 * found["parameters", ""] * found["tokens", ""]
    assert found["utilization", ""] == pytest.approx(flop / found["run_time", ""] / gpus / 1979e12)


def test_a_run_that_no_layout_finishes_has_no_layout() -> None:
    found = values_of(subject_of("run_1e31"))
    assert found["utilization", ""] == 0
    assert ("gpus", "") not in found


def test_the_baseline_alone_has_a_band(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("suites.seconds.limits.PER_DECADE", 1)
    readings: list[Reading] = list(limits.sample(subject_of("three_months", draws=5)))
    draws = [one.value for one in readings if (one.metric, one.method) == ("wall_begins", "draws")]
    assert len(draws) == 5
    low, high = (one.value for one in readings if (one.metric, one.method) == ("wall_begins", "band"))
    assert min(draws) <= low < high <= max(draws)
    inputs = {one.method for one in readings if one.metric == "wall_begins/low"}
    assert inputs == set(RANGES)
    variant = list(limits.sample(subject_of("three_months", "wider", draws=5)))
    assert not [one for one in variant if one.method == "draws"]


def test_curves_have_as_many_heights_as_places() -> None:
    readings = list(limits.sample(subject_of("three_months", "overlap")))
    x, y = ([one.value for one in readings if (one.metric, one.method) == (metric, "curve")]
            for metric in ("training_compute", "utilization"))  # fmt: skip
    assert len(x) == len(y) > 10
    assert x == sorted(x)


@pytest.mark.parametrize("name", [name for name in VARIANTS if name != "baseline"])
def test_every_variant_changes_an_input_and_loses_the_band(name: str) -> None:
    subject = subject_of("three_months", name)
    assert subject.workload != subject_of("three_months").workload
    assert not subject.is_baseline


def test_a_step_below_its_bound_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = subject_of("gpt3_512")
    time = limits.published_time(subject.workload)
    monkeypatch.setattr(limits, "published_time", lambda given: time._replace(total_s=time.total_s / 3))
    with pytest.raises(WrongResult, match=r"^a step takes .* s; no layout takes less than .* s$"):
        limits.check(subject)


def test_a_run_above_the_efficiency_of_its_kernels_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = subject_of("run_1e26")
    best = limits.best_run(subject.workload, 1e26)
    monkeypatch.setattr(limits, "best_run", lambda given, flop: best._replace(utilization=0.61))
    with pytest.raises(WrongResult, match=r"^utilization 0.61; kernels reach 0.6$"):
        limits.check(subject)
    monkeypatch.setattr(limits, "best_run", lambda given, flop: best._replace(step_s=best.step_s / 2))
    with pytest.raises(WrongResult, match="the best layout takes"):
        limits.check(subject)


BAD = [
    ("gpt3_512", "network_B_per_s=-1", "expected a number of at least 100000000.0"),
    ("gpt3_512", "network_B_per_s=4e11", "at most node_link_B_per_s * 0.5"),  # of a node, not of a GPU
    ("gpt3_512", "network_B_per_s=400", "expected a number of at least"),  # Gbit/s
    ("gpt3_512", "peak_FLOP_per_s=1979", "expected a number of at least"),  # TFLOP/s
    ("run_1e28", "training_flop=1e16", "expected a number of at least"),  # FLOP/s
    ("run_1e28", "peak_FLOP_per_s=2e28", "at most 1.5e+16"),  # FLOP of a run
    ("gpt3_512", "peak_FLOP_per_s=1.5832e16", "at most 1.5e+16"),  # of a node
    ("gpt3_512", "memory_B_per_s=3350", "expected a number of at least"),  # GB/s
    ("gpt3_512", "memory_B_per_s=3.12", "expected a number of at least"),  # TiB/s
    ("gpt3_512", "memory_B_per_s=2.68e13", "at most 25000000000000.0"),  # of a node
    ("gpt3_512", "node_link_B_per_s=3.6e12", "at most 3000000000000.0"),  # of a node
    ("gpt3_512", "weight_B=8", "at most 4"),  # bits
    ("gpt3_512", "published_step_s=11070", "at most 600"),  # milliseconds
    ("run_1e28", "run_s=91", "of at least 3600"),  # days
    ("gpt3_512", "published_step_s=-1", "expected a number above 0"),
    ("run_1e28", "seq_len=0", "of at least 1"),
    ("gpt3_512", "kernel_s=5", "at most 0.01"),  # microseconds
    ("gpt3_512", "memory_B_per_s=null", "missing"),
    ("gpt3_512", "sequences=100", "a multiple of dp_size (16)"),
    ("gpt3_512", "tp_size=7", "a multiple of tp_size (7)"),
    ("gpt3_512", "pp_size=7", "a multiple of pp_size (7)"),
    ("run_1e28", "tp_size=8", "expected a multiple of tp_size (8)"),
    ("run_1e28", "experts_per_token=2", "at most experts (1)"),
    ("run_1e28", "efficiency=60", "at most 1"),
]


@pytest.mark.parametrize(("workload", "word", "said"), BAD, ids=[f"{one[0]}.{one[1]}" for one in BAD])
def test_bad_input_is_one_line_that_says_what_is_allowed(workload: str, word: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        load(["suite=limits", f"suite.workloads.{workload}.{word}"])
    assert "\n" not in str(error.value)
    assert word.partition("=")[0] in str(error.value) or word.partition("_size")[0] in str(error.value)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("micro_batch_size=3", "micro_batch_size=3: expected a divisor of sequences / dp_size (128)"),
        (
            "virtual_stages=5",
            "virtual_stages=5: 96 pipeline_layers do not divide by pp_size * virtual_stages (40)",
        ),
    ],
)
def test_a_layout_that_does_not_divide_ends_the_command(
    word: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before any cell: relations of three fields are known to the suite alone."""
    words = ["suite=limits", "workloads=[gpt3_512]", f"suite.workloads.gpt3_512.{word}", f"out={tmp_path}"]
    assert main(words) == 2
    assert capsys.readouterr().err == f"harness: gpt3_512, baseline: {said}\n"
    assert not list(tmp_path.iterdir())


BINARY = [
    ("memory_B_per_s", 3350 * 2.0**30, "1.074 times the nominal 3.35e+12 B/s; is it in GiB/s for GB/s?"),
    ("memory_B_per_s", 3.35 * 2.0**40, "1.100 times the nominal 3.35e+12 B/s; is it in TiB/s for TB/s?"),
    ("node_link_B_per_s", 450 * 2.0**30, "1.074 times the nominal 4.5e+11 B/s; is it in GiB/s for GB/s?"),
    ("network_B_per_s", 50 * 2.0**30, "1.074 times the nominal 5e+10 B/s; is it in GiB/s for GB/s?"),
]


@pytest.mark.parametrize(("name", "value", "said"), BINARY, ids=[f"{one[0]}.{one[2][:5]}" for one in BINARY])
def test_a_bandwidth_in_gibibytes_ends_the_command(
    name: str, value: float, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    word = f"suite.workloads.gpt3_512.{name}={value:g}"
    assert main(["suite=limits", "workloads=[gpt3_512]", word, f"out={tmp_path}"]) == 2
    assert capsys.readouterr().err == f"harness: gpt3_512, baseline: {name}={value:g}: {said}\n"


@pytest.mark.parametrize(
    "changes",
    [
        {"memory_B_per_s": 3350 * 2.0**30, "device_name": "NVIDIA Z9"},
        {"memory_B_per_s": 3.4e12},
        {"memory_B_per_s": 4.8e12, "device_name": "NVIDIA H200 SXM"},
        {"network_B_per_s": 48e9},
    ],
    ids=["of an unknown machine", "another value", "of a data sheet", "measured"],
)
def test_other_bandwidths_are_accepted(changes: dict[str, Any]) -> None:
    assert subject_of("gpt3_512", **changes)


def test_a_changed_subject_keeps_the_rest() -> None:
    subject = subject_of("run_1e26")
    moved = subject_of("run_1e26", "combined.hidden_wider_batch")
    expected = replace(subject.workload, overlap=1.0, batch_exponent=0.5, depth_exponent=0.0)
    assert moved.workload == expected
    assert moved.seed == subject.seed == 3
