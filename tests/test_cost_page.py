"""docs/cost.md states what the cost suite calculates."""

import numpy as np
from test_cost import BASELINE, PAIRS, RUN, usd_per_h, values_of

from harness.code_fingerprint import ROOT
from suites import cost


def test_the_page_states_what_the_suite_calculates():
    """Each number of docs/cost.md that is not a quotation, as the page writes it."""
    found, base = values_of(), values_of(variant=BASELINE)
    speed_ups = {name: values_of(name)["speedup", ""] for name in PAIRS}
    alike = [speed_up for name, speed_up in speed_ups.items() if RUN.workloads[name]["alike"]]
    rented = sum(one > found["break_even", "rented_2026_07"] for one in speed_ups.values())
    owned = sum(one > found["break_even", "formula"] for one in speed_ups.values())
    ends = {
        method: [found[f"break_even_{end}", method] for end in ("low", "high")]
        for metric, method in found
        if metric == "break_even_low"
    }
    shared = [value for name in cost.OWNER for value in ends[name]]
    power = [value for name, values in ends.items() if name.startswith("power") for value in values]
    rack = ends["server_USD of gb200"]
    bands = [found["break_even", "band"], base["cost_rate", "band"], found["cost_rate", "band"]]
    stated = [
        f"costs its owner {found['break_even', 'formula']:.2f} times as much",
        f"{bands[0][0]:.2f} to {bands[0][1]:.2f} in 90 % of the",
        f"in {owned} of {len(PAIRS)} published pairs",
        f"it pays off in {rented} of the {len(PAIRS)}",
        f"${usd_per_h(base):.2f} ({bands[1][0]:.2f} to {bands[1][1]:.2f})",
        f"${usd_per_h(found):.2f} ({bands[2][0]:.2f} to {bands[2][1]:.2f})",
        f"between {min(shared):.2f} and {max(shared):.2f} at most",
        f"({min(power):.2f} to {max(power):.2f}) and the price",
        f"price of the rack ({min(rack):.2f} to {max(rack):.2f})",
        f"interest of {100 * base['interest', 'calibrated']:.1f} % at which H100 costs $1.42",
        f"GB200 costs ${usd_per_h(found, 'calibrated'):.2f}",
        f"half are above {np.median(list(speed_ups.values())):.2f}×",
        f"In the {len(alike)} that have the same",
        f"half are above {np.median(alike):.2f}×",
        f"{min(speed_ups.values()):.2f}×. Another count",
        f"needs {found['break_even', 'formula'] / 0.8:.2f} times the speed",
    ]
    page = " ".join((ROOT / "docs/cost.md").read_text().split())
    assert not [one for one in stated if one not in page]
