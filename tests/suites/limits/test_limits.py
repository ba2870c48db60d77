"""The limits suite: published steps that it has to predict, its readings, bad input, and its page."""

from math import prod

import pytest
from variants import applied

from harness.commands.main import main
from harness.config.run import load
from harness.config.validation import ConfigError
from harness.records import Unavailable, WrongResult
from suites.seconds import limits
from suites.seconds.walls import RANGES
from suites.seconds.workload import LimitsWorkload

RUN = load(["suite=limits"])[0]
VARIANTS = {variant.name: variant for variant in RUN.variants}
GATE = [name for name, one in RUN.workloads.items() if one["kind"] == "published" and one["role"] == "gate"]


def subject_of(workload, variant="baseline", **changes):
    fields = {**RUN.workloads[workload], **changes}
    return applied("limits", VARIANTS[variant], limits.build(fields, 3))


def values_of(subject):
    limits.check(subject)
    return {(one.metric, one.method): one.value for one in limits.sample(subject)}


def test_published_steps_are_predicted_within_15_percent_and_not_with_all_communication_hidden():
    """With what is shipped; an input that is changed to meet another number fails here."""
    gpus = [LimitsWorkload(**RUN.workloads[name]).gpus for name in GATE]
    assert gpus == [512, 768, 4096, 6144, 8192, 10240, 10752, 512, 8192]
    hidden = []
    for name in GATE:
        found = values_of(subject_of(name))
        error = found["relative_error", "exposed"]
        assert abs(error) < 0.15
        assert error == pytest.approx(found["time", "calculated"] / found["time", "published"] - 1)
        hidden.append(values_of(subject_of(name, "overlap"))["relative_error", "hidden"])
    assert max(hidden) < 0
    assert sum(abs(error) < 0.15 for error in hidden) == 1


def test_a_run_states_its_layout_and_finishes_in_time():
    found = values_of(subject_of("run_1e26"))
    assert found["run_time", ""] <= RUN.workloads["run_1e26"]["run_s"]
    gpus = prod(found[f"layout/{name}", ""] for name in ("columns", "rows", "dp", "pp"))
    assert found["gpus", ""] == gpus
    flop = 6 * found["parameters", ""] * found["tokens", ""]
    assert found["utilization", ""] == pytest.approx(flop / found["run_time", ""] / gpus / 1979e12)
    unfinished = values_of(subject_of("run_1e31"))
    assert unfinished["utilization", ""] == 0
    assert ("gpus", "") not in unfinished


def test_the_baseline_has_a_band_and_a_curve_has_as_many_heights_as_places(monkeypatch):
    monkeypatch.setattr("suites.seconds.limits.PER_DECADE", 1)
    readings = list(limits.sample(subject_of("three_months", draws=3)))
    draws, (low, high), x, y = (
        [one.value for one in readings if (one.metric, one.method) == key]
        for key in (("wall_begins", "draws"), ("wall_begins", "band"), ("training_compute", "curve"),
                    ("utilization", "curve"))
    )  # fmt: skip
    assert len(draws) == 3
    assert min(draws) <= low < high <= max(draws)
    assert {one.method for one in readings if one.metric == "wall_begins/low"} == set(RANGES)
    assert len(x) == len(y) > 5
    assert x == sorted(x)


def test_what_no_kernel_or_layout_reaches_is_caught(monkeypatch):
    run, step = subject_of("run_1e26"), subject_of("gpt3_512")
    time, best = limits.published_time(step.workload), limits.best_run(run.workload, 1e26)
    for subject, name, wrong, said in (
        (step, "published_time", time._replace(total_s=time.total_s / 3), r"no layout takes less than .* s$"),
        (run, "best_run", best._replace(utilization=0.61), r"^utilization 0.61; kernels reach 0.6$"),
        (run, "best_run", best._replace(step_s=best.step_s / 2), "the best layout takes"),
    ):
        monkeypatch.setattr(limits, name, lambda *_, wrong=wrong: wrong)
        with pytest.raises(WrongResult, match=said):
            limits.check(subject)


BAD = [
    ("gpt3_512", "network_B_per_s=-1", "expected a number of at least 100000000.0"),
    ("gpt3_512", "network_B_per_s=4e11", "at most node_link_B_per_s * 0.5"),  # of a node, not of a GPU
    ("gpt3_512", "peak_FLOP_per_s=1979", "expected a number of at least"),  # TFLOP/s
    ("gpt3_512", "published_step_s=11070", "at most 600"),  # milliseconds
    ("run_1e28", "run_s=91", "of at least 3600"),  # days
    ("gpt3_512", "published_step_s=-1", "expected a number above 0"),
    ("gpt3_512", "memory_B_per_s=null", "missing"),
    ("gpt3_512", "sequences=100", "a multiple of dp_size (16)"),
    ("gpt3_512", "tp_size=7", "a multiple of tp_size (7)"),
    ("run_1e28", "experts_per_token=2", "at most experts (1)"),
]


@pytest.mark.parametrize(("workload", "word", "said"), BAD, ids=[f"{one[0]}.{one[1]}" for one in BAD])
def test_bad_input_is_one_line_that_says_what_is_allowed(workload, word, said):
    with pytest.raises(ConfigError) as error:
        load(["suite=limits", f"suite.workloads.{workload}.{word}"])
    assert "\n" not in str(error.value)
    assert word.partition("=")[0] in str(error.value) or word.partition("_size")[0] in str(error.value)
    assert said in str(error.value)


def test_relations_of_three_fields_and_bandwidths_in_gibibytes_are_refused(tmp_path, capsys):
    """Before any cell: the suite alone knows them."""
    of_H100 = "times the nominal 3.35e+12 B/s; is it in"
    for name, value, said in (
        ("micro_batch_size", 3, "expected a divisor of sequences / dp_size (128)"),
        ("virtual_stages", 5, "96 pipeline_layers do not divide by pp_size * virtual_stages (40)"),
        ("memory_B_per_s", 3350 * 2.0**30, f"1.074 {of_H100} GiB/s for GB/s?"),
        ("network_B_per_s", 50 * 2.0**30, "1.074 times the nominal 5e+10 B/s; is it in GiB/s for GB/s?"),
    ):
        with pytest.raises(Unavailable) as error:
            subject_of("gpt3_512", **{name: value})
        assert str(error.value) == f"{name}={value:g}: {said}"
    words = ["suite=limits", "workloads=[gpt3_512]", "suite.workloads.gpt3_512.virtual_stages=5"]
    assert main([*words, f"out={tmp_path}"]) == 2
    assert capsys.readouterr().err.startswith("harness: gpt3_512, baseline: virtual_stages=5: ")
    assert not list(tmp_path.iterdir())
    for accepted in (
        {"memory_B_per_s": 3350 * 2.0**30, "device_name": "NVIDIA Z9"},  # of an unknown machine
        {"memory_B_per_s": 3.4e12},
        {"memory_B_per_s": 4.8e12, "device_name": "NVIDIA H200 SXM"},  # of a data sheet
        {"network_B_per_s": 48e9},  # measured
    ):
        assert subject_of("gpt3_512", **accepted)
