"""docs/commands/cost.md states what the cost suite calculates."""

import numpy as np
from test_cost import BASELINE, OF_H200, OF_MLPERF, PAIRS, RUN, values_of

from harness.config.code_fingerprint import ROOT

PAGE = (ROOT / "docs/commands/cost.md").read_text()
TEXT = " ".join(PAGE.split())
FOUND, BASE = values_of(), values_of(variant=BASELINE)
OF_EACH = {name: values_of(name) for name in (*PAIRS, *OF_H200)}
SPEED_UPS = {name: one["speedup", ""] for name, one in OF_EACH.items()}
ALIKE = [name for name in PAIRS if RUN.workloads[name]["alike"]]


def above(names, least):
    return sum(SPEED_UPS[name] > least for name in names)


def test_the_page_states_what_the_suite_calculates():
    bands = [FOUND["break_even", "band"], BASE["cost_rate", "band"], FOUND["cost_rate", "band"]]
    even, rented = FOUND["break_even", "formula"], FOUND["break_even", "rented_2026_07"]
    median = np.median([SPEED_UPS[name] for name in PAIRS])
    for stated in (
        f"costs its owner {even:.2f} times as much",
        f"{bands[0][0]:.2f} to {bands[0][1]:.2f} in 90 % of the",
        f"in {above(PAIRS, even)} of {len(PAIRS)} published pairs",
        f"it pays off in {above(PAIRS, rented)} of the {len(PAIRS)}",
        f"${BASE['cost_rate', 'formula']:.2f} ({bands[1][0]:.2f} to {bands[1][1]:.2f})",
        f"${FOUND['cost_rate', 'formula']:.2f} ({bands[2][0]:.2f} to {bands[2][1]:.2f})",
        f"needs {even / 0.8:.2f} times the speed",
        f"half are above {median:.2f}×, and {above(PAIRS, 1.6)} are above 1.6×",
    ):
        assert stated in TEXT


def test_each_row_of_the_pages_tables_is_what_the_suite_calculates():
    """Prices with the pairs above them, and kinds of pairs with their medians."""
    for method, start in {
        "formula": "owned, by the formula",
        "semianalysis_2025_08": "owned, SemiAnalysis",
        "hyperscaler_2026_07": "owned, hyperscaler",
        "neocloud_2026_07": "owned, neocloud",
        "rented_2026_07": "rented, July 2026",
        "coreweave_2026_02": "on demand, CoreWeave",
    }.items():
        row = next(line for line in PAGE.splitlines() if line.startswith(f"| {start}"))
        even = FOUND["break_even", method]
        assert f"{even:.2f}×" in row
        assert row.endswith(f"| {above(PAIRS, even)} of {len(PAIRS)} |")
    for kind, names in {
        "tokens/s, compared with H100": [name for name in PAIRS if name not in OF_MLPERF],
        "MLPerf Training, samples/s, compared with H100": [name for name in PAIRS if name in OF_MLPERF],
        "all that are compared with H100": PAIRS,
        "of these, the same number of GPUs, batch and precision": ALIKE,
        "MLPerf Training, samples/s, compared with H200": OF_H200,
    }.items():
        ratios = [SPEED_UPS[name] for name in names]
        last = "see below" if names is OF_H200 else above(names, FOUND["break_even", "formula"])
        row = f"| {kind} | {len(names)} | {np.median(ratios):.2f}× | {min(ratios):.2f}× | {last} |"
        assert row in PAGE
