"""Bandwidths given in GiB/s or TiB/s where GB/s or TB/s are meant: 7 or 10 % above a data sheet's value."""

from __future__ import annotations

import math
from typing import NamedTuple

from harness.records import Unavailable
from suites.limits.subject import Workload

BINARY_PREFIXES = {"GiB/s for GB/s": 2.0**30 / 1e9, "TiB/s for TB/s": 2.0**40 / 1e12}
"""What a value is too large by where it was given with a binary prefix."""

SAME = 1e-3
"""Relative difference within which a value is taken to be such a multiple: it has four digits."""


class Nominal(NamedTuple):
    """The bandwidths of a GPU by its data sheet, in B/s."""

    memory: float
    link: float  # each way


DATA_SHEETS = {
    "NVIDIA A100 40GB": Nominal(1.555e12, 300e9),
    "NVIDIA A100 80GB": Nominal(2.039e12, 300e9),
    "NVIDIA H100 PCIe 80GB": Nominal(2.0e12, 300e9),
    "NVIDIA H100 NVL 94GB": Nominal(3.9e12, 300e9),
    "NVIDIA H100 SXM": Nominal(3.35e12, 450e9),
    "NVIDIA H200 SXM": Nominal(4.8e12, 450e9),
    "NVIDIA B200": Nominal(7.67e12, 900e9),
    "NVIDIA GB200": Nominal(8.0e12, 900e9),
    "NVIDIA B300": Nominal(7.7e12, 900e9),
    "NVIDIA GB300": Nominal(8.0e12, 900e9),
    "NVIDIA L40S": Nominal(864e9, 32e9),
    "NVIDIA GeForce RTX 4090": Nominal(1.008e12, 32e9),
    "NVIDIA GeForce RTX 5090": Nominal(1.792e12, 64e9),
    "NVIDIA GeForce RTX 3090": Nominal(936e9, 32e9),
    "NVIDIA RTX 6000 Ada Generation": Nominal(960e9, 32e9),
    "NVIDIA RTX A6000": Nominal(768e9, 32e9),
    "NVIDIA A40": Nominal(696e9, 32e9),
    "NVIDIA A10": Nominal(600e9, 32e9),
    "NVIDIA A10G": Nominal(600e9, 32e9),
    "NVIDIA L4": Nominal(300e9, 32e9),
    "NVIDIA V100 16GB": Nominal(900e9, 150e9),
    "NVIDIA V100 32GB": Nominal(900e9, 150e9),
    "NVIDIA T4": Nominal(320e9, 16e9),
    "AMD Instinct MI300X": Nominal(5.3e12, 448e9),
    "AMD Instinct MI355X": Nominal(8.0e12, 537.6e9),
}
"""Nominal rates by `device_name`; conf/hardware has the same with their sources."""

PORTS_B_PER_S = (12.5e9, 25e9, 50e9, 100e9)
"""Network ports of 100, 200, 400 and 800 Gbit/s."""


def refuse_binary_units(given: Workload) -> None:
    """Raise `Unavailable`, one line that names the input, where a nominal bandwidth has a binary prefix."""
    if sheet := DATA_SHEETS.get(given.device_name):
        _refuse("memory_B_per_s", given.memory_B_per_s, sheet.memory)
        _refuse("node_link_B_per_s", given.node_link_B_per_s, sheet.link)
    _refuse("network_B_per_s", given.network_B_per_s, *PORTS_B_PER_S)


def _refuse(name: str, value: float, *nominal: float) -> None:
    for one in nominal:
        for meant, ratio in BINARY_PREFIXES.items():
            if math.isclose(value, one * ratio, rel_tol=SAME):
                raise Unavailable(
                    f"{name}={value:g}: {ratio:.3f} times the nominal {one:g} B/s; is it in {meant}?"
                )
