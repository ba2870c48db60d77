"""What the cost suite calculates, its sources, and what it refuses."""

import re
from dataclasses import replace

import numpy as np
import pytest
from variants import applied

from harness.claims.judge import outcome
from harness.claims.load import load_claims
from harness.commands.main import main
from harness.config.run import load
from harness.records import Note, Origin, Reading, Unavailable, WrongResult
from suites.cost import suite as cost
from suites.cost.cost_model import CostParts

RUN = load(["suite=cost"])[0]
GB200 = next(one for one in RUN.variants if one.name == "machine.gb200_nvl72")
BASELINE = next(one for one in RUN.variants if one.name == "baseline")
PAIRS = [name for name in RUN.workloads if name.startswith("pair_")]
OF_H200 = [name for name in RUN.workloads if name.startswith("h200_")]
OF_MLPERF = [name for name, one in RUN.workloads.items() if one["samples_per_s"]]


def subject_of(workload, variant=GB200, seed=0, **changes):
    fields = {**RUN.workloads[workload], **changes}
    subject = cost.build(fields, seed)
    return subject if variant is BASELINE else applied("cost", variant, subject)


def values_of(workload="owner", variant=GB200, **changes):
    subject = subject_of(workload, variant, **changes)
    cost.check(subject)
    readings = [one for one in cost.sample(subject) if isinstance(one, Reading)]
    found: dict = {}
    for one in readings:
        found.setdefault((one.metric, one.method), []).append(one.value)
    return {key: values[0] if len(values) == 1 else values for key, values in found.items()}


def usd_per_h(found, method="formula"):
    return found["cost_rate", method]


def test_an_hour_is_the_sum_of_its_parts():
    found = values_of()
    parts = [found[f"cost_rate/{name}", "formula"] for name in CostParts._fields]
    assert sum(parts) == pytest.approx(found["cost_rate", "formula"])
    assert min(parts) > 0


def test_calibrated_on_the_published_hour_of_h100_the_formula_gives_it_back():
    assert usd_per_h(values_of(variant=BASELINE), "calibrated") == pytest.approx(1.42)
    found = values_of()
    rates = [usd_per_h(values_of(variant=one), "calibrated") for one in (GB200, BASELINE)]
    assert found["break_even", "calibrated"] == pytest.approx(rates[0] / rates[1])


def test_no_interest_calibrates_on_a_price_below_all_other_costs():
    assert ("cost_rate", "calibrated") not in values_of(published_USD_per_h=0.2)


def test_a_band_holds_its_share_of_the_draws_and_contains_the_value():
    subject = subject_of("owner")
    draws = cost.drawn_total(subject, subject.machine) / cost.drawn_total(subject, subject.baseline)
    found = values_of()
    low, high = found["break_even", "band"]
    assert np.mean((draws >= low) & (draws <= high)) == pytest.approx(0.9, abs=0.002)
    assert low < found["break_even", "formula"] < high


def test_both_machines_share_the_draws_of_their_owner():
    """The same machine twice has a ratio of one in every draw, though most inputs are uncertain."""
    subject = subject_of("owner", BASELINE)
    same = replace(subject, machine=replace(subject.machine, device_name="again"))
    assert cost.drawn_total(subject, same.machine) == pytest.approx(
        cost.drawn_total(subject, subject.baseline)
    )
    assert len(set(cost.drawn_total(subject, subject.machine))) == RUN.workloads["owner"]["draws"]


def test_another_seed_moves_the_band_by_less_than_two_percent():
    one, other = (subject_of("owner", seed=seed) for seed in (1, 2))
    bands = [
        np.quantile(cost.drawn_total(s, s.machine) / cost.drawn_total(s, s.baseline), (0.05, 0.95))
        for s in (one, other)
    ]
    assert bands[0] == pytest.approx(bands[1], rel=0.02)
    assert (bands[0] != bands[1]).all()


@pytest.mark.parametrize("pair", PAIRS)
def test_a_pair_pays_where_its_speed_up_is_above_the_ratio_of_the_costs(pair):
    found, base = values_of(pair), values_of(pair, BASELINE)
    cost = "cost_per_sample" if pair in OF_MLPERF else "cost_per_token"
    cheaper = found[cost, "formula"] < base[cost, "formula"]
    assert cheaper == (found["speedup", ""] > found["break_even", "formula"])
    low, high = found["break_even", "band"]
    if found["speedup", ""] > high:
        assert found["share_that_pays", ""] > 0.94
    if found["speedup", ""] < low:
        assert found["share_that_pays", ""] < 0.06


def test_a_token_at_a_listed_price_by_hand():
    """105,863 tokens/s on 512 H100 at $1.30 per hour."""
    found = values_of("pair_llama31_405b_bf16", BASELINE)
    assert found["cost_per_token", "rented_2026_07"] * 1e6 == pytest.approx(
        1.30 * 512 / 3600 / 105_863 * 1e6, rel=1e-5
    )
    assert found["run_cost", "rented_2026_07"] == pytest.approx(
        1e12 * found["cost_per_token", "rented_2026_07"]
    )


@pytest.mark.parametrize("pair", OF_MLPERF)
def test_samples_are_priced_as_samples_and_never_as_tokens(pair):
    """The log has samples/s of all GPUs: those of one are priced, and no token or run of tokens is."""
    for variant, machine in ((BASELINE, RUN.workloads[pair]["machine"]), (GB200, "gb200")):
        found = values_of(pair, variant)
        per_s = RUN.workloads[pair]["samples_per_s"][machine]
        assert found["samples_per_s_per_device", ""] == per_s
        rate = found["cost_rate", "rented_2026_07"]
        assert found["cost_per_sample", "rented_2026_07"] == pytest.approx(rate / 3600 / per_s)
        assert not {"tokens_per_s_per_device", "cost_per_token", "run_cost"} & {metric for metric, _ in found}


@pytest.mark.parametrize("pair", OF_H200)
def test_an_h200_is_priced_by_the_lists_alone(pair):
    """No source has the price of its server, so the formula gives nothing, for either machine."""
    found, base = values_of(pair), values_of(pair, BASELINE)
    with_h200 = {name for name, one in RUN.workloads[pair]["prices"].items() if "h200" in one["USD_per_h"]}
    for metric in ("cost_rate", "cost_per_sample"):
        assert {method for one, method in base if one == metric} == with_h200
    assert {method for metric, method in found if metric == "break_even"} == with_h200
    for name in with_h200:
        assert found["break_even", name] == pytest.approx(found["cost_rate", name] / base["cost_rate", name])
        cheaper = found["cost_per_sample", name] < base["cost_per_sample", name]
        assert cheaper == (found["speedup", ""] > found["break_even", name])
    assert not [key for key in found if key[1] in ("formula", "band", "calibrated")]


def test_each_pair_states_what_a_sample_is_and_where_its_logs_are():
    for pair in OF_MLPERF:
        one = RUN.workloads[pair]
        assert one["sample"]
        assert len(one["gpus_of_run"]) == len(one["samples_per_s"]) == 2
        assert re.search(r"mlcommons/training_results_v4\.1 b87b9e39|_v5\.0 0fdc28f0", one["source"])


@pytest.mark.parametrize("claim", ["gpt3_2024_01", "gpt3_2024_12", "llama3_405b"])
def test_published_costs_of_training_come_out_of_the_published_mfu(claim):
    one = next(each for each in load_claims("cost") if each.id == claim)
    found = values_of(one.interpretations[0].workload, BASELINE)
    ours = found["cost_per_token", "semianalysis_2025_08"]
    assert outcome(one, ours, ours) == "holds"


def test_a_machine_that_is_used_less_has_to_be_faster_and_costs_no_more_to_own():
    settings = {**GB200.settings, "used_share": 0.8, "sources": GB200.settings["sources"]}
    less = applied("cost", replace(GB200, settings=settings), cost.build(RUN.workloads["owner"], 1))
    found = {(one.metric, one.method): one.value for one in cost.sample(less) if isinstance(one, Reading)}
    usual = values_of()
    assert found["break_even", "formula"] == pytest.approx(usual["break_even", "formula"] / 0.8)
    assert found["cost_ratio", "formula"] == pytest.approx(usual["cost_ratio", "formula"])


def test_every_input_has_a_source_or_is_assumed_and_another_value_is_the_users():
    notes = [one.text for one in cost.sample(subject_of("owner")) if isinstance(one, Note)]
    names = [text.partition(": ")[0] for text in notes]
    assert sorted(names) == sorted([*cost.OWNER, *cost.OF_MACHINE])
    assert all(re.search(r", \d{4}(-\d\d){0,2}$", text) for text in notes)
    moved = [one.text for one in cost.sample(subject_of("owner", life_years=4.5)) if isinstance(one, Note)]
    assert "life_years: given by the user" in moved


@pytest.mark.parametrize("name", [*cost.OWNER, "server_USD", "network_USD", "power_kW", "used_share", "gpus"])
def test_every_input_moves_the_cost_of_an_hour(name):
    """By a tenth, without leaving what may be meant."""
    value = RUN.workloads["owner"][name]
    moved = value + 1 if name == "gpus" else value * (0.9 if name == "used_share" else 1.1)
    changes = {name: moved, "ranges": {}}
    before, after = (values_of(variant=BASELINE, **one) for one in ({}, changes))
    assert usd_per_h(after) != pytest.approx(usd_per_h(before), rel=1e-6)


def test_no_draw_makes_the_papers_words_true_if_they_mean_160_percent_more():
    subject = subject_of("owner")
    draws = cost.drawn_total(subject, subject.machine) / cost.drawn_total(subject, subject.baseline)
    assert 1.2 < draws.min() < draws.max() < 2.6


def test_combinations_are_what_each_of_them_gives_alone():
    found = values_of("combinations")
    method = "life_years=4, interest=0.15, electricity_USD_per_kWh=0.1301, server_USD=2.8e+06, used_share=0.8"
    owner = {"life_years": 4.0, "interest": 0.15, "electricity_USD_per_kWh": 0.1301}
    settings = {**GB200.settings, "server_USD": 2.8e6, "used_share": 0.8}
    alone = applied("cost", replace(GB200, settings=settings), subject_of("owner", BASELINE, **owner))
    ours, base = (float(cost.central_parts(alone, one).total) for one in (alone.machine, alone.baseline))
    assert found["cost_rate", method] == pytest.approx(ours)
    assert found["baseline_rate", method] == pytest.approx(base)
    assert found["break_even", method] == pytest.approx(ours / base)
    assert sum("=" in key for metric, key in found if metric == "break_even") == 3**5


def test_all_is_calculated_or_published():
    for name in ("owner", PAIRS[0]):
        origins = {one.origin for one in cost.sample(subject_of(name)) if isinstance(one, Reading)}
        assert origins == {Origin.CALCULATED, Origin.PUBLISHED}


def test_a_wrong_annuity_is_found(monkeypatch):
    monkeypatch.setattr(cost, "annuity_factor", lambda interest, years: 0.3)
    with pytest.raises(WrongResult, match=r"payments over 5 years are worth 1\.1"):
        cost.check(subject_of("owner", BASELINE))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"gpus": 1},
            r"server_USD=190000: \$250,000 per GPU with gpus=1, expected 1,000 to 200,000; a node's price",
        ),
        ({"server_USD": 23750.0, "gpus": 100}, r"\$838 per GPU with gpus=100.*is it the price of one GPU"),
        (
            {"power_kW": 700.0, "ranges": {}},
            "power_kW=700: 87.5 kW per GPU with gpus=8, expected 0.2 to 5; is it in W",
        ),
        ({"power_kW": 1.275, "ranges": {}}, "0.159 kW per GPU.*is it the power of one GPU"),
        ({"colocation_USD_per_kW_month": 0.2, "ranges": {}}, "expected 0 or at least 10; is it per hour"),
        (
            {"life_years": 12.0},
            r"life_years=12: outside of its range 4 to 6; give ranges.life_years=\[LOW,HIGH\] too",
        ),
        ({"ranges": {"pue": [2, 1]}}, r"ranges.pue=\[2, 1\]: expected \[LOW, HIGH\]"),
        ({"ranges": {"pue": 2}}, "ranges.pue=2: expected"),
        ({"ranges": {"wages": [1, 2]}}, "ranges.wages: no such input; allowed: price_level"),
        ({"sources": {}}, "sources.price_level: missing"),
        ({"tokens_per_s": {"h100_80gb": -1}}, "tokens_per_s.h100_80gb=-1: expected tokens/s of one GPU"),
        ({"combinations": {"wages": [1]}}, "combinations.wages: no such input"),
        ({"combinations": {"pue": 1.2}}, "combinations.pue=1.2: expected a list of numbers"),
        ({"combinations": {"pue": [-1]}}, "combinations.pue: -1; expected numbers of at least 0"),
        ({"combinations": {"pue": [1.0] * 101, "interest": [0.1] * 101}}, "10,201; expected at most 10,000"),
        ({"kind": "pair"}, "tokens_per_s.h100_80gb: missing"),
        (
            {"kind": "pair", "samples_per_s": {"gb200": 1.0}, "sample": "an image"},
            "samples_per_s.h100_80gb: missing; a pair has the samples/s of both machines",
        ),
        (
            {"samples_per_s": {"gb200": 0}, "sample": "an image"},
            "samples_per_s.gb200=0: expected samples/s of one GPU, above 0",
        ),
        ({"samples_per_s": {"gb200": 1.0}}, "sample: missing; expected what a sample is"),
        (
            {"samples_per_s": {"gb200": 1.0}, "tokens_per_s": {"gb200": 1.0}},
            "samples_per_s: give it or tokens_per_s, not both",
        ),
        ({"server_USD": None}, "server_USD: missing; give all of server_USD, network_USD, power_kW"),
        (
            {"server_USD": None, "network_USD": None, "power_kW": None},
            "server_USD: missing; only a pair may leave out server_USD, network_USD, power_kW",
        ),
        (
            {"prices": {"mine": {"kind": "owned", "source": "me", "USD_per_h": {"gb200": 2}}}},
            "prices.mine.date: missing",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line(changes, reason):
    with pytest.raises(Unavailable, match=reason) as refused:
        subject_of("owner", BASELINE, **changes)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("key", ["at", "date", "source"])
def test_a_price_without_its_value_date_or_source_is_refused(key):
    sources = RUN.workloads["owner"]["sources"]
    without = {name: value for name, value in sources["server_USD"].items() if name != key}
    with pytest.raises(Unavailable, match=f"sources.server_USD.{key}: missing; a price needs"):
        subject_of("owner", BASELINE, sources={**sources, "server_USD": without})


def test_a_date_is_a_date():
    sources = RUN.workloads["owner"]["sources"]
    with pytest.raises(Unavailable, match="date=yesterday: expected a date as 2025"):
        subject_of("owner", BASELINE, sources={**sources, "pue": {**sources["pue"], "date": "yesterday"}})


@pytest.mark.parametrize(
    ("word", "error"),
    [
        ("server_USD=1.52e7", "a node's price needs the node's gpus"),
        ("sources.pue.date=null", "sources.pue.date: missing; a price needs its value, date and source"),
        ("prices.rented_2026_07.date=''", "prices.rented_2026_07.date: missing; a price list has"),
        ("colocation_USD_per_kW_month=0.2", "outside of its range 120 to 184.06"),
    ],
)
def test_what_cannot_be_meant_ends_the_command(word, error, tmp_path, capsys):
    """What the declared bounds cannot see: every cell is built before one is run."""
    words = ["suite=cost", "workloads=[owner]", f"suite.workloads.owner.{word}"]
    assert main([*words, f"out={tmp_path}"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("harness: owner, baseline: ")
    assert error in lines[0]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("word", "error"),
    [
        ("suite.workloads.owner.server_USD=-1", "server_USD=-1: expected a number above 0"),
        ("suite.workloads.owner.interest=11", "interest=11: expected a number of at least 0 and at most 1"),
        ("suite.workloads.owner.electricity_USD_per_kWh=80", "expected a number of at least 0 and at most 1"),
        ("suite.workloads.owner.pue=0.9", "pue=0.9: expected a number of at least 1"),
        ("suite.workloads.owner.life_years=null", "life_years: missing; expected a number"),
        ("suite.workloads.owner.memory_GB=80", "memory_GB: no such name"),
        ("suite.workloads.run_llama3_405b_bf16.mfu=54", "mfu=54: expected a number above 0 and at most 1"),
        ("suite.workloads.run_llama3_405b_bf16.peak_FLOP_per_s=989.4", "expected a number of at least"),
        ("suite.workloads.run_llama3_405b_bf16.model_FLOP_per_token=2.63", "expected a number of at least"),
        (
            "suite.workloads.run_llama3_405b_bf16.run_tokens=15",
            "run_tokens=15: expected a number of at least",
        ),
        ("+suite.workloads.mine={machine: h100_80gb}", "suite.workloads.mine: missing fields: price_level"),
        ("suite.optimizations.machine.settings.gpus=0", "gpus=0: expected a whole number of at least 1"),
    ],
)
def test_a_mistake_on_the_command_line_ends_with_one_line(word, error, capsys):
    assert main(["suite=cost", word]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert error in lines[0]
