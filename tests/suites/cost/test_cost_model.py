"""The formulas of a GPU-hour's cost, each against another way to the same number."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from suites.cost.cost_model import annuity_factor, cost_parts, solved, usd_per_unit

MACHINE = {"server_USD": 190e3, "network_USD": 60e3, "power_kW": 10.2, "used_share": 1.0}
OWNER = {
    "price_level": 1.0,
    "life_years": 5.0,
    "interest": 0.11,
    "electricity_USD_per_kWh": 0.08,
    "pue": 1.3,
    "colocation_USD_per_kW_month": 150.0,
    "operations_share": 0.02,
}
RATES = st.floats(0, 1)
YEARS = st.integers(1, 20)


def total(machine=None, gpus=8, **owner):
    return float(cost_parts({**MACHINE, **(machine or {})}, {**OWNER, **owner}, gpus).total)


@given(RATES, YEARS)
def test_the_payments_of_an_annuity_are_worth_the_loan(interest, years):
    """Each payment is discounted by the years until it is made."""
    payment = annuity_factor(interest, float(years))
    assert sum(payment / (1 + interest) ** year for year in range(1, years + 1)) == pytest.approx(1)


@given(RATES, YEARS)
def test_a_loan_is_repaid_by_its_payments_year_by_year(interest, years):
    """The debt grows by its interest and falls by each payment; what remains is rounding of what was owed."""
    debt, payment = 1.0, annuity_factor(interest, float(years))
    for _ in range(years):
        debt = debt * (1 + interest) - payment
    assert debt == pytest.approx(0, abs=1e-12 * (1 + interest) ** years)


@pytest.mark.parametrize("years", [1.0, 4.0, 5.5])
def test_without_interest_a_loan_is_repaid_in_equal_parts(years):
    assert annuity_factor(0.0, years) == 1 / years
    assert annuity_factor(1e-8, years) == pytest.approx(1 / years, rel=1e-6)


def test_a_gpu_hour_by_hand():
    """One GPU of $10,000 over 2 years without interest, 1 kW, all else in round numbers."""
    machine = {"server_USD": 8_760.0, "network_USD": 1_752.0, "power_kW": 1.0, "used_share": 0.5}
    owner = {
        "price_level": 1.0,
        "life_years": 2.0,
        "interest": 0.0,
        "electricity_USD_per_kWh": 0.1,
        "pue": 1.5,
        "colocation_USD_per_kW_month": 73.0,
        "operations_share": 0.0,
    }
    parts = cost_parts(machine, owner, 1)
    assert parts.server == pytest.approx(1.0)  # 8,760 over 2 x 4,380 hours
    assert parts.network == pytest.approx(0.2)
    assert parts.interest == pytest.approx(0, abs=1e-9)
    assert parts.electricity == pytest.approx(0.3)  # 1.5 kW for two hours per hour that is used
    assert parts.colocation == pytest.approx(0.2)  # 876 dollars per year over 4,380 hours
    assert parts.operations == 0
    assert parts.total == pytest.approx(1.7)


@given(RATES, st.integers(1, 15))
def test_all_payments_discounted_are_the_capital_and_all_that_is_spent(interest, years):
    """Net present value: capital now, and each year's electricity, rent and operations."""
    level_per_h = total(interest=interest, life_years=float(years))
    worth = sum(level_per_h * 8760 / (1 + interest) ** year for year in range(1, years + 1))
    running = total(
        interest=interest, life_years=float(years), machine={"server_USD": 1e-9, "network_USD": 0.0}
    )
    operations = 0.02 * 250e3 / 8 / 8760
    spent = sum((running + operations) * 8760 / (1 + interest) ** year for year in range(1, years + 1))
    assert worth == pytest.approx(250e3 / 8 + spent, rel=1e-6)


@pytest.mark.parametrize("name", ["interest", "electricity_USD_per_kWh", "pue", "price_level"])
@given(st.floats(0.01, 0.9), st.floats(1.01, 1.1))
def test_a_dearer_input_makes_an_hour_dearer(name, value, factor):
    value = 1 + value if name == "pue" else value
    assert total(**{name: value * factor}) > total(**{name: value})


@given(st.floats(1, 10), st.floats(1.01, 1.5))
def test_a_longer_life_makes_an_hour_cheaper(years, factor):
    assert total(life_years=years * factor) < total(life_years=years)


@given(st.floats(0.1, 10))
def test_the_ratio_of_two_machines_is_free_of_the_scale_of_all_dollars(scale):
    """In another currency the speed-up that breaks even is the same."""
    dollars = ("electricity_USD_per_kWh", "colocation_USD_per_kW_month")
    owner = {name: OWNER[name] * scale for name in dollars}
    rack = {"server_USD": 3.1e6, "network_USD": 0.8e6, "power_kW": 120.0}

    def ratio(factor, **owner):
        machines = [{**MACHINE, **rack}, MACHINE]
        scaled = [
            {**m, "server_USD": m["server_USD"] * factor, "network_USD": m["network_USD"] * factor}
            for m in machines
        ]
        return total(scaled[0], 72, **owner) / total(scaled[1], 8, **owner)

    assert ratio(scale, **owner) == pytest.approx(ratio(1.0))


def test_a_node_of_twice_the_gpus_at_twice_the_price_costs_the_same_per_gpu():
    twice = {"server_USD": 380e3, "network_USD": 120e3, "power_kW": 20.4}
    assert total(twice, 16) == pytest.approx(total())


def test_draws_are_calculated_at_once_as_one_by_one():
    rng = np.random.default_rng(1)
    interest, power_kW = rng.uniform(0, 0.2, 50), rng.uniform(8, 12, 50)
    at_once = cost_parts({**MACHINE, "power_kW": power_kW}, {**OWNER, "interest": interest}, 8).total
    by_one = [total({"power_kW": p}, interest=i) for i, p in zip(interest, power_kW, strict=True)]
    assert at_once == pytest.approx(by_one)


@given(st.floats(0.1, 10), st.floats(1, 1e5), st.floats(0.5, 5))
def test_a_dearer_machine_breaks_even_where_a_token_costs_the_same(usd, tokens_per_s, ratio):
    """The speed-up found by bisection on the cost of a token is the ratio of the costs per hour."""
    base = usd_per_unit(usd, tokens_per_s)
    found = solved(lambda x: -usd_per_unit(usd * ratio, tokens_per_s * x), -base, 0.1, 10)
    assert found == pytest.approx(ratio)


def test_a_million_tokens_and_an_hour_are_the_same_dollars():
    """1,000 tokens/s make 3.6 million tokens per hour."""
    assert usd_per_unit(3.6, 1000.0) * 1e6 == pytest.approx(1.0)


def test_a_value_that_lies_outside_is_not_found():
    assert solved(lambda x: x * x, 2.0, 0.0, 2.0) == pytest.approx(2**0.5)
    assert solved(lambda x: x * x, 5.0, 0.0, 2.0) is None
