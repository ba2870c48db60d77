"""A workload of the cost suite: an owner, two machines, and what others published about them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from harness.bounds import Bounds, PositiveInt


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What an owner pays, the machine that is compared with, and the throughput that others published."""

    # owner: cost per hour. pair: published throughput of both machines. run: published cost of one machine.
    kind: Literal["owner", "pair", "run"] = "owner"

    price_level: Annotated[float, Bounds(above=0, at_most=10)]  # what this buyer pays over the prices below
    life_years: Annotated[float, Bounds(at_least=1, at_most=20)]  # after which the machine is worth nothing
    interest: Annotated[float, Bounds(at_least=0, at_most=1)]  # per year, as a share
    electricity_USD_per_kWh: Annotated[float, Bounds(at_least=0, at_most=1)]
    pue: Annotated[float, Bounds(at_least=1, at_most=3)]  # power of the data center over that of its IT
    colocation_USD_per_kW_month: Annotated[float, Bounds(at_least=0, at_most=1000)]  # without electricity
    operations_share: Annotated[float, Bounds(at_least=0, at_most=1)]  # of capital per year

    # The machine of the baseline, by its unit of sale: a server, or a rack. Where its price has no source,
    # the three inputs below are null: only the price lists of `prices` have its cost.
    machine: str  # a name of conf/hardware
    device_name: str
    gpus: PositiveInt  # of the unit
    server_USD: Annotated[float, Bounds(above=0)] | None  # the unit alone
    network_USD: Annotated[float, Bounds(at_least=0)] | None  # network, storage and the rest, of the unit
    power_kW: Annotated[float, Bounds(above=0)] | None  # of the unit with its share of the network
    used_share: Annotated[float, Bounds(above=0, at_most=1)] = 1.0  # of all hours: neither idle nor down

    ranges: dict[str, Any]  # input: [LOW, HIGH]; an input without one is not drawn
    sources: dict[str, Any]  # input: {at: VALUE, date: DATE, source: TEXT}
    draws: Annotated[int, Bounds(at_least=100, at_most=1000000)] = 4096
    # Of the baseline; see `calibrated_owner`.
    published_USD_per_h: Annotated[float, Bounds(above=0, at_most=100)] | None = None
    prices: dict[str, Any] = field(default_factory=dict)  # conf/prices.yaml

    # Input to values: every combination is calculated. An input of a machine is that of the dearer one.
    combinations: dict[str, Any] = field(default_factory=dict)

    # By machine: published tokens/s of one GPU, or samples/s where the source counts no tokens, and the GPUs
    # that it was measured on.
    tokens_per_s: dict[str, Any] = field(default_factory=dict)
    samples_per_s: dict[str, Any] = field(default_factory=dict)
    sample: str = ""  # what one is
    gpus_of_run: dict[str, Any] = field(default_factory=dict)
    precision: str = ""
    alike: bool = False  # the same number of GPUs, batch and precision on both machines
    run_tokens: Annotated[float, Bounds(at_least=1e6)] = 1e12  # of the training run that is priced
    # Of a run: MFU times the peak over the FLOP per token is its throughput.
    mfu: Annotated[float, Bounds(above=0, at_most=1)] | None = None
    peak_FLOP_per_s: Annotated[float, Bounds(at_least=1e12, at_most=1.5e16)] | None = None
    model_FLOP_per_token: Annotated[float, Bounds(at_least=1e6, at_most=1e15)] | None = None
    source: str = ""
