"""Inputs given in another unit than their name has: of a GPU for a node's, W for kW, hours for months."""

from __future__ import annotations

import math

from harness.records import Unavailable
from suites.cost.cost_model import CostInputs
from suites.cost.subject import Machine
from suites.cost.workload import Workload

LEAST_USD, MOST_USD = 1_000, 200_000
"""Capital per GPU that can be meant."""

LEAST_KW, MOST_KW = 0.2, 5.0
"""Power per GPU that can be meant."""

LEAST_RENT = 10.0
"""Dollars per kW and month below which a rent that is not 0 is taken to be per hour or per year."""


def refuse_confused_units(machine: Machine, owner: CostInputs) -> None:
    """Raise `Unavailable`, one line that names the input and the unit that was probably meant."""
    values, gpus = machine.inputs.values, machine.gpus
    per_gpu = (values["server_USD"] + values["network_USD"]) / gpus
    if not LEAST_USD <= per_gpu <= MOST_USD:
        meant = (
            "a node's price needs the node's gpus" if per_gpu > MOST_USD else "is it the price of one GPU?"
        )
        raise Unavailable(
            f"server_USD={values['server_USD']:g}: ${per_gpu:,.0f} per GPU with gpus={gpus}, expected "
            f"{LEAST_USD:,} to {MOST_USD:,}; {meant}"
        )
    power_kW = values["power_kW"] / gpus
    if not LEAST_KW <= power_kW <= MOST_KW:
        meant = "is it in W, or of a node?" if power_kW > MOST_KW else "is it the power of one GPU?"
        raise Unavailable(
            f"power_kW={values['power_kW']:g}: {power_kW:.3g} kW per GPU with gpus={gpus}, expected "
            f"{LEAST_KW:g} to {MOST_KW:g}; {meant}"
        )
    rent = owner.values["colocation_USD_per_kW_month"]
    if 0 < rent < LEAST_RENT:
        raise Unavailable(
            f"colocation_USD_per_kW_month={rent:g}: expected 0 or at least {LEAST_RENT:g}; is it per hour?"
        )


def refuse_wrong_throughput(given: Workload) -> None:
    """Raise `Unavailable` where a throughput is not positive, or a pair lacks that of its machine."""
    if given.tokens_per_s and given.samples_per_s:
        raise Unavailable("samples_per_s: give it or tokens_per_s, not both")
    if given.samples_per_s and not given.sample:
        raise Unavailable("sample: missing; expected what a sample is, as an image of 512 x 512")
    for unit, published in (("tokens", given.tokens_per_s), ("samples", given.samples_per_s)):
        for name, per_s in published.items():
            if not isinstance(per_s, int | float) or not 0 < per_s < math.inf:
                raise Unavailable(f"{unit}_per_s.{name}={per_s}: expected {unit}/s of one GPU, above 0")
    if given.kind == "pair" and given.machine not in (given.samples_per_s or given.tokens_per_s):
        unit = "samples" if given.samples_per_s else "tokens"
        raise Unavailable(f"{unit}_per_s.{given.machine}: missing; a pair has the {unit}/s of both machines")
