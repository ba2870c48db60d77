"""The limits suite: published steps that it has to predict, its readings, bad input, and its page."""

from collections import defaultdict
from math import prod

import pytest
from variants import applied

from harness.commands.main import main
from harness.config.code_fingerprint import ROOT
from harness.config.run import load
from harness.config.validation import ConfigError
from harness.records import Unavailable, WrongResult
from harness.sweep.store import read_records
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


def test_every_workload_of_one_kind_has_the_same_inputs():
    """Nothing is fitted to a point: what differs is stated by its source."""
    own = {
        "num_hidden_layers", "pipeline_layers", "hidden_size", "num_attention_heads", "num_key_value_heads",
        "intermediate_size", "mlp_matrices", "vocab_size", "tp_size", "pp_size", "virtual_stages", "cp_size",
        "dp_size", "sequences", "seq_len", "published_step_s", "role", "from_dp_size", "from_sequences",
        "from_step_s", "source", "attention_FLOP_per_s",
    }  # fmt: skip
    precision = {"peak_FLOP_per_s", "weight_B"}  # bf16 of the steps that are held out
    rates = {2048: 265e12, 8192: 308e12, 131072: 328e12}
    base = RUN.workloads["gpt3_512"]
    for name, one in RUN.workloads.items():
        if one["kind"] == "published":
            differ = {field for field in base if one[field] != base[field]} - own
            assert differ <= (precision if one["role"] == "held_out" else set()), name
            assert one["attention_FLOP_per_s"] == rates[one["seq_len"]]


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


def test_the_baseline_alone_has_a_band_and_a_curve_has_as_many_heights_as_places(monkeypatch):
    monkeypatch.setattr("suites.seconds.limits.PER_DECADE", 1)
    readings = list(limits.sample(subject_of("three_months", draws=5)))
    draws, (low, high), x, y = (
        [one.value for one in readings if (one.metric, one.method) == key]
        for key in (("wall_begins", "draws"), ("wall_begins", "band"), ("training_compute", "curve"),
                    ("utilization", "curve"))
    )  # fmt: skip
    assert len(draws) == 5
    assert min(draws) <= low < high <= max(draws)
    assert {one.method for one in readings if one.metric == "wall_begins/low"} == set(RANGES)
    assert len(x) == len(y) > 5
    assert x == sorted(x)
    variant = list(limits.sample(subject_of("three_months", "wider", draws=5)))
    assert not [one for one in variant if one.method == "draws"]


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
    ("gpt3_512", "network_B_per_s=400", "expected a number of at least"),  # Gbit/s
    ("gpt3_512", "peak_FLOP_per_s=1979", "expected a number of at least"),  # TFLOP/s
    ("gpt3_512", "peak_FLOP_per_s=1.5832e16", "at most 1.5e+16"),  # of a node
    ("gpt3_512", "memory_B_per_s=3350", "expected a number of at least"),  # GB/s
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
    ("run_1e28", "tp_size=8", "expected a multiple of tp_size (8)"),
    ("run_1e28", "experts_per_token=2", "at most experts (1)"),
    ("run_1e28", "efficiency=60", "at most 1"),
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
        ("memory_B_per_s", 3.35 * 2.0**40, f"1.100 {of_H100} TiB/s for TB/s?"),
        ("node_link_B_per_s", 450 * 2.0**30, "1.074 times the nominal 4.5e+11 B/s; is it in GiB/s for GB/s?"),
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


SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
WALLS = ("wall_begins", "wall_ends")
SHOWN = ("baseline", "larger_batch", "combined.wider_batch", "overlap", "combined.hidden_batch",
         "combined.hidden_wider_batch")  # fmt: skip
PAGE = (ROOT / "docs/suites/limits.md").read_text()


@pytest.fixture(scope="module")
def recorded():
    """Return the samples of each workload, variant, metric and method."""
    found = defaultdict(list)
    for record in read_records(ROOT / "results/reference/limits"):
        for one in record.measurements:
            found[record.cell.workload, record.cell.optimization, one.metric, one.method] += one.samples
    return found


def power(value):
    digits, exponent = f"{value:.1e}".split("e")
    return f"{digits} × 10{str(int(exponent)).translate(SUPERSCRIPTS)}"


def test_the_page_states_the_walls_and_steps_of_the_records(recorded):
    """Each wall of its first table, its band and each measured step, as the page writes them."""
    rows = [[power(recorded["three_months", name, wall, ""][0]) for wall in WALLS] for name in SHOWN]
    bands = [recorded["three_months", "baseline", metric, "band"] for metric in WALLS]
    rows += [[f"{power(min(ends))} to {power(max(ends))}" for ends in bands]]
    gate = [
        one for one, *key in recorded if key == ["baseline", "sequences", "published"] and one[:4] != "meta"
    ]
    for workload in gate:
        metrics = ("sequences", "time")
        sequences, seconds = (recorded[workload, "baseline", one, "published"][0] for one in metrics)
        rows += [[f"{sequences:,.0f}", f"{seconds:g} s"]]
    assert len(gate) == 9
    page = " ".join(PAGE.split())
    assert not [row for row in rows if f"| {' | '.join(row)} |" not in page]


def test_the_page_counts_the_combinations_that_reach_the_claim(recorded):
    """Runs of three months; without hidden communication each has a growing batch and larger nodes."""
    walls = {
        method: value[0]
        for (workload, _, metric, method), value in recorded.items()
        if (workload, metric) == ("combinations", "wall_begins") and "run_s=7.884e+06" in method
    }
    none, half = (
        {m: wall for m, wall in walls.items() if f"overlap={share}," in m} for share in ("0", "0.5")
    )
    reach, reach_half = ([m for m, wall in of.items() if wall >= 1e28] for of in (none, half))
    assert not [m for m in reach if "batch_exponent=0," in m or "node_size=8," in m]
    page = " ".join(PAGE.split())
    assert f"in {len(reach)} of {len(none)} combinations" in page
    assert f"at {power(max(none.values()))} FLOP at most" in page
    assert f"{len(reach_half)} of {len(half)} combinations reach it" in page


def test_every_step_that_opens_the_page_is_predicted(recorded):
    """The page may predict larger runs only if each published step is within 15 %."""
    of = {key: value[0] for key, value in recorded.items() if not key[0].startswith("meta")}
    errors, scaling, hidden = (
        [value for key, value in of.items() if key[2:] == metric]
        for metric in (
            ("relative_error", "exposed"),
            ("scaling_error", "exposed"),
            ("relative_error", "hidden"),
        )
    )
    assert max(abs(error) for error in (*errors, *scaling)) < 0.15
    assert len(hidden) == 9
    within = sum(abs(error) < 0.15 for error in hidden)
    assert f"{('none', 'one')[within]} of nine" in " ".join(PAGE.partition("\n|")[0].split())
