"""What the cost suite calculates, its sources, and what it refuses."""

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from variants import applied

from harness.claims.judge import outcome
from harness.claims.load import load_claims
from harness.commands.main import main
from harness.config.run import load
from harness.records import Note, Reading, Unavailable, WrongResult
from suites.cost import cost_model
from suites.cost import suite as cost
from suites.cost.cost_model import CostParts, annuity_factor, cost_parts

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


def test_an_hour_is_the_sum_of_its_parts_and_calibrated_what_was_published():
    found, base = values_of(), values_of(variant=BASELINE)
    parts = [found[f"cost_rate/{name}", "formula"] for name in CostParts._fields]
    assert sum(parts) == pytest.approx(found["cost_rate", "formula"])
    assert base["cost_rate", "calibrated"] == pytest.approx(1.42)
    ratio = found["cost_rate", "calibrated"] / base["cost_rate", "calibrated"]
    assert found["break_even", "calibrated"] == pytest.approx(ratio)
    below_all_other_costs = values_of(published_USD_per_h=0.2)
    assert ("cost_rate", "calibrated") not in below_all_other_costs


def drawn_ratio(subject):
    return cost_model.drawn_total(subject, subject.machine) / cost_model.drawn_total(
        subject, subject.baseline
    )


def test_a_band_holds_its_share_of_the_draws_and_contains_the_value():
    draws, found = drawn_ratio(subject_of("owner")), values_of()
    low, high = found["break_even", "band"]
    assert np.mean((draws >= low) & (draws <= high)) == pytest.approx(0.9, abs=0.002)
    assert low < found["break_even", "formula"] < high
    # If the paper means 160 percent more, no draw makes its words true.
    assert 1.2 < draws.min() < draws.max() < 2.6
    other = np.quantile(drawn_ratio(subject_of("owner", seed=2)), (0.05, 0.95))
    assert other == pytest.approx([low, high], rel=0.02)
    assert (other != [low, high]).all()


def test_both_machines_share_the_draws_of_their_owner():
    """The same machine twice has a ratio of one in every draw, though most inputs are uncertain."""
    subject = subject_of("owner", BASELINE)
    same = replace(subject, machine=replace(subject.machine, device_name="again"))
    assert drawn_ratio(same) == pytest.approx(1)
    assert len(set(cost_model.drawn_total(subject, subject.machine))) == RUN.workloads["owner"]["draws"]


def test_a_token_at_a_listed_price_by_hand():
    """105,863 tokens/s on 512 H100 at $1.30 per hour."""
    found, price = values_of("pair_llama31_405b_bf16", BASELINE), "rented_2026_07"
    assert found["cost_per_token", price] == pytest.approx(1.30 * 512 / 3600 / 105_863, rel=1e-5)
    assert found["run_cost", price] == pytest.approx(1e12 * found["cost_per_token", price])


def test_samples_are_priced_as_samples_and_never_as_tokens():
    """The log has samples/s of all GPUs: those of one are priced, and no token or run of tokens is."""
    for pair in OF_MLPERF:
        fields = RUN.workloads[pair]
        for variant, machine in ((BASELINE, fields["machine"]), (GB200, "gb200")):
            found = values_of(pair, variant)
            per_s = fields["samples_per_s"][machine]
            assert found["samples_per_s_per_device", ""] == per_s
            rate = found["cost_rate", "rented_2026_07"]
            assert found["cost_per_sample", "rented_2026_07"] == pytest.approx(rate / 3600 / per_s)
            metrics = {metric for metric, _ in found}
            assert not {"tokens_per_s_per_device", "cost_per_token", "run_cost"} & metrics


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
    assert not [key for key in found if key[1] in ("formula", "band", "calibrated")]


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
    assert sorted(names) == sorted([*cost_model.OWNER, *cost_model.OF_MACHINE])
    assert all(re.search(r", \d{4}(-\d\d){0,2}$", text) for text in notes)
    moved = [one.text for one in cost.sample(subject_of("owner", life_years=4.5)) if isinstance(one, Note)]
    assert "life_years: given by the user" in moved


def test_combinations_are_what_each_of_them_gives_alone():
    found = values_of("combinations")
    method = "life_years=4, interest=0.15, electricity_USD_per_kWh=0.1301, server_USD=2.8e+06, used_share=0.8"
    owner = {"life_years": 4.0, "interest": 0.15, "electricity_USD_per_kWh": 0.1301}
    settings = {**GB200.settings, "server_USD": 2.8e6, "used_share": 0.8}
    alone = applied("cost", replace(GB200, settings=settings), subject_of("owner", BASELINE, **owner))
    ours, base = (
        float(cost_model.central_parts(alone, one).total) for one in (alone.machine, alone.baseline)
    )
    assert found["cost_rate", method] == pytest.approx(ours)
    assert found["baseline_rate", method] == pytest.approx(base)
    assert found["break_even", method] == pytest.approx(ours / base)
    assert sum("=" in key for metric, key in found if metric == "break_even") == 3**5


def test_a_wrong_annuity_is_found(monkeypatch):
    monkeypatch.setattr(cost_model, "annuity_factor", lambda interest, years: 0.3)
    with pytest.raises(WrongResult, match=r"payments over 5 years are worth 1\.1"):
        cost.check(subject_of("owner", BASELINE))


NO_FORMULA = {"server_USD": None, "network_USD": None, "power_kW": None}
IMAGE = {"sample": "an image"}


def of_source(name, **changes):
    sources = RUN.workloads["owner"]["sources"]
    return {"sources": {**sources, name: {**sources[name], **changes}}}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"gpus": 1}, r"server_USD=190000: \$250,000 per GPU with gpus=1, expected .*; a node's price"),
        ({"power_kW": 700.0, "ranges": {}}, "power_kW=700: 87.5 kW per GPU with gpus=8.*is it in W"),
        ({"life_years": 12.0}, r"life_years=12: outside of its range 4 to 6; give ranges.life_years"),
        ({"ranges": {"pue": [2, 1]}}, r"ranges.pue=\[2, 1\]: expected \[LOW, HIGH\]"),
        ({"sources": {}}, "sources.price_level: missing"),
        (of_source("server_USD", date=None), "sources.server_USD.date: missing"),
        (of_source("pue", date="yesterday"), "sources.pue.date=yesterday: expected a date as 2025"),
        ({"tokens_per_s": {"h100_80gb": -1}}, "tokens_per_s.h100_80gb=-1: expected tokens/s of one GPU"),
        ({"combinations": {"pue": [1.0] * 101, "interest": [0.1] * 100}}, "10,100; expected at most 10,000"),
        ({"kind": "pair", "samples_per_s": {"gb200": 1.0}, **IMAGE}, "samples_per_s.h100_80gb: missing"),
        ({"samples_per_s": {"gb200": 1.0}, "tokens_per_s": {"gb200": 1.0}}, "samples_per_s: give it or"),
        (NO_FORMULA, "server_USD: missing; only a pair may leave out server_USD, network_USD, power_kW"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused_in_one_line(changes, reason):
    with pytest.raises(Unavailable, match=reason) as refused:
        subject_of("owner", BASELINE, **changes)
    assert "\n" not in str(refused.value)


def test_what_cannot_be_meant_ends_the_command(tmp_path, capsys):
    """What the declared bounds cannot see: every cell is built before one is run."""
    words = ["suite=cost", "workloads=[owner]", "suite.workloads.owner.server_USD=1.52e7"]
    assert main([*words, f"out={tmp_path}"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("harness: owner, baseline: server_USD=1.52e+07: ")
    assert not list(tmp_path.iterdir())


# The formulas of a GPU-hour's cost, each against another way to the same number.


@given(st.floats(0, 1), st.integers(1, 20))
def test_the_payments_of_an_annuity_are_worth_the_loan(interest, years):
    """Each payment is discounted by the years until it is made; without interest all are equal parts."""
    payment = annuity_factor(interest, float(years))
    assert sum(payment / (1 + interest) ** year for year in range(1, years + 1)) == pytest.approx(1)
    assert annuity_factor(0.0, years + 0.5) == 1 / (years + 0.5)
    assert annuity_factor(1e-8, years + 0.5) == pytest.approx(1 / (years + 0.5), rel=1e-6)


def test_a_gpu_hour_by_hand():
    """A node of two GPUs, at twice its prices, repaid over 2 years of use for half of the hours."""
    machine = {"server_USD": 8_760.0, "network_USD": 1_752.0, "power_kW": 2.0, "used_share": 0.5}
    owner = {
        "price_level": 2.0,
        "life_years": 2.0,
        "interest": 1.0,
        "electricity_USD_per_kWh": 0.1,
        "pue": 1.5,
        "colocation_USD_per_kW_month": 73.0,
        "operations_share": 0.1,
    }
    parts = cost_parts(machine, owner, 2)
    assert parts.server == pytest.approx(1.0)  # 8,760 over 2 x 4,380 hours
    assert parts.network == pytest.approx(0.2)
    assert parts.interest == pytest.approx(10_512 / 4_380 * (4 / 3 - 1 / 2))  # x / 2 + x / 4 = 1
    assert parts.electricity == pytest.approx(0.3)  # 1.5 kW for two hours per hour that is used
    assert parts.colocation == pytest.approx(0.2)  # 876 dollars per year over 4,380 hours
    assert parts.operations == pytest.approx(0.24)  # a tenth of 10,512 over 4,380 hours
    assert parts.total == pytest.approx(sum(parts))
