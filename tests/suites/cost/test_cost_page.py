"""docs/commands/cost.md states what the cost suite calculates."""

import re

import numpy as np
from test_cost import BASELINE, OF_H200, OF_MLPERF, PAIRS, RUN, values_of

from harness.config.code_fingerprint import ROOT
from suites.cost import suite as cost

PAGE = (ROOT / "docs/commands/cost.md").read_text()
TEXT = " ".join(PAGE.split())
FOUND, BASE = values_of(), values_of(variant=BASELINE)
OF_EACH = {name: values_of(name) for name in (*PAIRS, *OF_H200)}
SPEED_UPS = {name: one["speedup", ""] for name, one in OF_EACH.items()}
ALIKE = [name for name in PAIRS if RUN.workloads[name]["alike"]]


def above(names, least):
    return sum(SPEED_UPS[name] > least for name in names)


def test_the_page_states_what_the_suite_calculates():
    """Each number of docs/commands/cost.md that is not a quotation, as the page writes it."""
    ends = {
        method: [FOUND[f"break_even_{end}", method] for end in ("low", "high")]
        for metric, method in FOUND
        if metric == "break_even_low"
    }
    shared = [value for name in cost.OWNER for value in ends[name]]
    power = [value for name, values in ends.items() if name.startswith("power") for value in values]
    rack = ends["server_USD of gb200"]
    bands = [FOUND["break_even", "band"], BASE["cost_rate", "band"], FOUND["cost_rate", "band"]]
    even, rented = FOUND["break_even", "formula"], FOUND["break_even", "rented_2026_07"]
    below = [name for name in PAIRS if SPEED_UPS[name] <= 1.6]
    mlperf = [name for name in PAIRS if name in OF_MLPERF]
    llama = [SPEED_UPS[name] for name in mlperf if "lora" in name or "llama" in name]
    others = [SPEED_UPS[name] for name in mlperf if not ("lora" in name or "llama" in name)]
    assert [name for name in below if name not in OF_MLPERF] == ["pair_deepseek_v3_bf16"]
    assert not [name for name in below if "lora" in name or "llama" in name]
    assert len(llama) == 3
    lists = ("hyperscaler_2026_07", "neocloud_2026_07", "rented_2026_07", "coreweave_2026_02")
    evens = [OF_EACH[OF_H200[0]]["break_even", name] for name in lists]
    kinds = ("owned, hyperscaler", "owned, neocloud", "rented", "on demand")
    shown = [f"{one:.2f}× ({kind})" for one, kind in zip(evens, kinds, strict=True)]
    pays = [str(above(OF_H200, one)) for one in evens]
    median = np.median([SPEED_UPS[name] for name in PAIRS])
    stated = [
        f"costs its owner {even:.2f} times as much",
        f"{bands[0][0]:.2f} to {bands[0][1]:.2f} in 90 % of the",
        f"in {above(PAIRS, even)} of {len(PAIRS)} published pairs",
        f"it pays off in {above(PAIRS, rented)} of the {len(PAIRS)}",
        f"${BASE['cost_rate', 'formula']:.2f} ({bands[1][0]:.2f} to {bands[1][1]:.2f})",
        f"${FOUND['cost_rate', 'formula']:.2f} ({bands[2][0]:.2f} to {bands[2][1]:.2f})",
        f"between {min(shared):.2f} and {max(shared):.2f} at most",
        f"({min(power):.2f} to {max(power):.2f}) and the price",
        f"price of the rack ({min(rack):.2f} to {max(rack):.2f})",
        f"interest of {100 * BASE['interest', 'calibrated']:.1f} % at which H100 costs $1.42",
        f"GB200 costs ${FOUND['cost_rate', 'calibrated']:.2f}",
        f"in {above(ALIKE, rented)} of the {len(ALIKE)} that have the same",
        f"needs {even / 0.8:.2f} times the speed",
        f"{len(PAIRS)} pairs compare GB200 with H100: half are above {median:.2f}×",
        f"half are above {median:.2f}×, and {above(PAIRS, 1.6)} are above 1.6×",
        f"Of the {len(below)} pairs with H100 that are not above 1.6×, one is DeepSeek-V3",
        f"one is DeepSeek-V3 and {len(below) - 1} are of MLPerf",
        f"reach {min(llama):.2f}× to {max(llama):.2f}×, the other {len(others)} pairs of MLPerf",
        f"pairs of MLPerf {min(others):.2f}× to {max(others):.2f}×.",
        f"breaks even at {', '.join(shown[:3])} and {shown[3]}. It pays off in",
        f"It pays off in {', '.join(pays[:3])} and {pays[3]} of the {len(OF_H200)} pairs.",
    ]
    assert not [one for one in stated if one not in TEXT]


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


def test_no_other_page_counts_the_pairs_differently():
    """What paragraphs that name GB200 and pairs count: `a of b` is a count that the committed inputs give."""
    evens = [v for (metric, _), v in FOUND.items() if metric == "break_even" and np.ndim(v) == 0]
    groups = (PAIRS, [one for one in PAIRS if one in OF_MLPERF], ALIKE, OF_H200, OF_MLPERF)
    right = {(above(names, even), len(names)) for names in groups for even in (1.6, *evens)}
    counted = set()
    for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        for paragraph in re.split(r"\n\s*\n", path.read_text()):
            if "GB200" in paragraph and re.search(r"\bpairs\b", paragraph):
                text = " ".join(paragraph.split())
                pattern = r"(?<![\d.,])(\d+) (?:of|in) (?:the )?(\d+)\b(?![.,]\d| ?%)"
                counted |= {(int(a), int(b)) for a, b in re.findall(pattern, text)}
    assert counted - right == set()
    assert (above(PAIRS, FOUND["break_even", "formula"]), len(PAIRS)) in counted
