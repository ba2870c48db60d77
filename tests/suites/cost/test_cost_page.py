"""docs/commands/cost.md states what the cost suite calculates."""

import numpy as np
from test_cost import BASELINE, OF_H200, OF_MLPERF, PAIRS, RUN, usd_per_h, values_of

from harness.config.code_fingerprint import ROOT
from suites import cost


def test_the_page_states_what_the_suite_calculates():
    """Each number of docs/commands/cost.md that is not a quotation, as the page writes it."""
    found, base = values_of(), values_of(variant=BASELINE)
    speed_ups = {name: values_of(name)["speedup", ""] for name in PAIRS}
    alike = [speed_up for name, speed_up in speed_ups.items() if RUN.workloads[name]["alike"]]
    rented = sum(one > found["break_even", "rented_2026_07"] for one in speed_ups.values())
    rented_alike = sum(one > found["break_even", "rented_2026_07"] for one in alike)
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
        f"in {rented_alike} of the {len(alike)} that have the same",
        f"needs {found['break_even', 'formula'] / 0.8:.2f} times the speed",
    ]
    page = " ".join((ROOT / "docs/commands/cost.md").read_text().split())
    assert not [one for one in stated if one not in page]


def test_the_page_counts_the_pairs_and_what_breaks_even():
    """Each row of its tables: prices with the pairs above them, and kinds of pairs with their medians."""
    found = values_of()
    speed_ups = {name: values_of(name)["speedup", ""] for name in (*PAIRS, *OF_H200)}
    of_h100 = {name: speed_ups[name] for name in PAIRS}
    page = (ROOT / "docs/commands/cost.md").read_text()
    for method, start in {
        "formula": "owned, by the formula",
        "semianalysis_2025_08": "owned, SemiAnalysis",
        "hyperscaler_2026_07": "owned, hyperscaler",
        "neocloud_2026_07": "owned, neocloud",
        "rented_2026_07": "rented, July 2026",
        "coreweave_2026_02": "on demand, CoreWeave",
    }.items():
        row = next(line for line in page.splitlines() if line.startswith(f"| {start}"))
        above = sum(one > found["break_even", method] for one in of_h100.values())
        assert f"{found['break_even', method]:.2f}×" in row
        assert row.endswith(f"| {above} of {len(PAIRS)} |")
    kinds = {
        "tokens/s, compared with H100": [name for name in PAIRS if name not in OF_MLPERF],
        "MLPerf Training, samples/s, compared with H100": [name for name in PAIRS if name in OF_MLPERF],
        "all that are compared with H100": PAIRS,
        "of these, the same number of GPUs, batch and precision": [
            name for name in PAIRS if RUN.workloads[name]["alike"]
        ],
        "MLPerf Training, samples/s, compared with H200": OF_H200,
    }
    for kind, names in kinds.items():
        ratios = [speed_ups[name] for name in names]
        above = sum(one > found["break_even", "formula"] for one in ratios)
        last = "see below" if names is OF_H200 else str(above)
        row = f"| {kind} | {len(names)} | {np.median(ratios):.2f}× | {min(ratios):.2f}× | {last} |"
        assert row in page
    every = list(speed_ups.values())
    text = " ".join(page.split())
    assert f"Over the {len(every)} pairs here half are above {np.median(every):.2f}×" in text
    assert f"the least is {min(every):.2f}×, and {sum(one > 1.6 for one in every)} are above 1.6×" in text
    below = [name for name, one in speed_ups.items() if one <= 1.6]
    of_mlperf = [name for name in below if name in OF_MLPERF]
    assert f"Of the {len(below)} that are not, one is DeepSeek-V3 and {len(of_mlperf)} are of MLPerf" in text
    assert [name for name in below if name not in OF_MLPERF] == ["pair_deepseek_v3_bf16"]
    assert not [name for name in of_mlperf if "lora" in name or "llama" in name]
    llama = [speed_ups[name] for name in OF_MLPERF if "lora" in name or "llama" in name]
    others = [speed_ups[name] for name in OF_MLPERF if "lora" not in name and "llama" not in name]
    assert f"reach {min(llama):.2f}× to {max(llama):.2f}×, the other {len(others)} pairs" in text
    assert f"pairs {min(others):.2f}× to {max(others):.2f}×." in text


def test_the_page_states_what_breaks_even_against_h200():
    found = {name: values_of(name) for name in OF_H200}
    first = found[OF_H200[0]]
    lists = ("hyperscaler_2026_07", "neocloud_2026_07", "rented_2026_07", "coreweave_2026_02")
    breaks_even = [first["break_even", name] for name in lists]
    kinds = ("owned, hyperscaler", "owned, neocloud", "rented", "on demand")
    shown = [f"{one:.2f}× ({kind})" for one, kind in zip(breaks_even, kinds, strict=True)]
    pays = [str(sum(one["speedup", ""] > even for one in found.values())) for even in breaks_even]
    text = " ".join((ROOT / "docs/commands/cost.md").read_text().split())
    assert f"breaks even at {', '.join(shown[:3])} and {shown[3]}. It pays off in" in text
    assert f"It pays off in {', '.join(pays[:3])} and {pays[3]} of the {len(OF_H200)} pairs." in text
