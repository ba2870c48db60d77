"""Fit the constants of kernels and links to published seconds of single operators and collectives.

    python -m suites.training.step_time.calibrate FOLDER

FOLDER has operators.csv.gz and collectives.csv.gz. Each constant is printed next to what constants.yaml has.
"""

from __future__ import annotations

import csv
import gzip
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from suites.training.step_time.constants import StepConstants, best_share
from suites.training.step_time.gpu import MatmulRates, RatedGpu, gpu_of, matmul_s

Row = Mapping[str, str]
Values = NDArray[np.float64]

DEVICES = {"a100": "a100_80gb", "h100": "h100_80gb"}
"""The operators' accelerators, and their files in conf/hardware."""

MATMULS = ("attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj")

WHOLE_NODE = 8
"""Ranks of a node, which training's collectives use."""

FEWEST_ROWS = 256
"""Training has no smaller matmuls; below, their seconds are those of a launch."""

STARTS = ((0.75, 0.95, 0.9, 0.8, 0.3, 30.0, 6e-6), (0.72, 0.9, 0.8, 0.6, 0.6, 10.0, 3e-6))
"""Where the search of a matmul's constants begins."""


class MeasuredMatmuls(NamedTuple):
    """Published seconds of matmuls of [rows, inner] and [inner, columns]."""

    rows: Values
    columns: Values
    inner: Values
    seconds: Values


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a compressed table."""
    with gzip.open(path, "rt") as file:
        return list(csv.DictReader(file))


def matmuls_of(rows: Iterable[Row], accelerator: str) -> MeasuredMatmuls:
    """Return vidur's matmuls on one accelerator."""
    found = []
    for row in rows:
        chosen = row["source"] == "vidur" and row["accelerator"] == accelerator
        if not chosen or row["operator"] not in MATMULS or int(row["tokens"]) < FEWEST_ROWS:
            continue
        found.append((float(row["tokens"]), *_sizes(row), float(row["forward_ms"]) / 1e3))
    return MeasuredMatmuls(*np.array(found, dtype=float).reshape(-1, 4).T)


def _sizes(row: Row) -> tuple[float, float]:
    """Return the columns and the inner dimension of a matmul of a tensor-parallel rank."""
    hidden, width, tp = int(row["hidden"]), int(row["ffn"]), int(row["tp"])
    head_dim = hidden // int(row["heads"])
    keys = 2 * max(int(row["kv_heads"]) // tp, 1) * head_dim
    up = (2 if row["gated"] == "True" else 1) * width // tp
    by_name = {
        "attn_pre_proj": (hidden // tp + keys, hidden),
        "attn_post_proj": (hidden, hidden // tp),
        "mlp_up_proj": (up, hidden),
        "mlp_down_proj": (hidden, width // tp),
    }
    return by_name[row["operator"]]


def fit_matmul(measured: MeasuredMatmuls, gpu: RatedGpu) -> tuple[MatmulRates, float]:
    """Return the constants that reproduce matmuls best, and their mean error."""

    def error(values: Values) -> float:
        seconds = matmul_s(measured.rows, measured.columns, measured.inner, gpu, _bounded(values))
        return float(np.mean(np.abs(np.log(seconds / measured.seconds))))

    options = {"maxiter": 3000, "maxfev": 5000}
    found = [minimize(error, start, method="Nelder-Mead", options=options) for start in STARTS]
    best = min(found, key=lambda one: float(one.fun))
    return _bounded(best.x), float(best.fun)


def _bounded(values: Values) -> MatmulRates:
    """Return constants that mean something: a share of the last wave, no negative seconds."""
    given = MatmulRates(*(float(value) for value in values))
    return given._replace(
        quantisation=min(max(given.quantisation, 0.0), 1.0),
        inner_offset=max(given.inner_offset, 0.0),
        fixed_s=max(given.fixed_s, 0.0),
    )


def memory_share(rows: Iterable[Row]) -> float:
    """Return the share of the memory's rate that additions of large tensors reach, in the median."""
    shares = []
    for row in rows:
        if row["source"] != "vidur" or row["accelerator"] not in DEVICES or row["operator"] != "add":
            continue
        size_B = 2.0 * int(row["tokens"]) * int(row["hidden"])
        gpu = gpu_of(DEVICES[row["accelerator"]])
        if size_B < 32e6 or gpu is None:  # smaller ones stay in the cache
            continue
        rate = 3 * size_B / (float(row["forward_ms"]) / 1e3)  # two read, one written
        shares.append(rate / gpu.memory_B_per_s)
    return float(np.median(shares))


def node_links(rows: Iterable[Row]) -> dict[str, float]:
    """Return the share of NVLink's rate that large all-reduces reach, and the seconds of the smallest.

    An all-reduce of n ranks passes 2 (n - 1) / n of its bytes through each link: nccl-tests, PERFORMANCE.md.
    """
    shares, smallest = [], []
    for row in rows:
        if row["system"] not in ("h100_dgx", "a100_dgx") or row["operation"] != "all_reduce":
            continue
        ranks, size_B, seconds = (
            int(row["ranks"]),
            float(row["bytes"]),
            float(row["milliseconds_median"]) / 1e3,
        )
        gpu = gpu_of(DEVICES[row["system"].split("_")[0]])
        if ranks != int(row["ranks_per_node"]) or ranks < WHOLE_NODE or gpu is None:
            continue
        if size_B > 48e6:
            shares.append(2 * (ranks - 1) / ranks * size_B / seconds / gpu.link_B_per_s)
        elif size_B < 1e5:
            smallest.append(seconds)
    return {"link.node_share": float(np.median(shares)), "link.collective_s": float(np.median(smallest)) / 2}


def network_links(rows: Iterable[Row]) -> dict[str, float]:
    """Return the share of the network's rate at large sizes, and the seconds that each further node adds.

    SimAI states the share by bytes and nodes of eight GPUs with an adapter each, of 400 Gbit/s.
    """
    node_B_per_s, large, hops = 8 * 50e9, [], []
    for row in rows:
        system = row["system"]
        if row["source"] != "SimAI ratio" or not system.startswith("nic:") or "Node-" not in system:
            continue
        nodes, size_B = int(system.split(":")[1].split("Node")[0]), float(row["bytes"])
        share = float(row["bus_gb_s"])
        if size_B == 2**28 and nodes <= 4:
            large.append(share)
        if size_B == 2**24 and nodes >= 8:
            hops.append((size_B / (share * node_B_per_s) - size_B / node_B_per_s) / (nodes - 1) / 2)
    return {"link.infiniband_share": float(np.median(large)), "link.network_hop_s": float(np.median(hops))}


def fitted(folder: Path) -> dict[str, float]:
    """Return all constants that the folder's tables determine, by name."""
    operators = read_rows(folder / "operators.csv.gz")
    collectives = read_rows(folder / "collectives.csv.gz")
    found: dict[str, float] = {}
    for accelerator, device in DEVICES.items():
        gpu = gpu_of(device)
        measured = matmuls_of(operators, accelerator)
        if gpu is None or not len(measured.rows):
            continue
        rates, error = fit_matmul(measured, gpu)
        name = f"matmul.{gpu.architecture}"
        found[f"{name}.typical_share"] = rates.peak_share / best_share(gpu, "bf16")
        found |= {f"{name}.{key}": value for key, value in rates._asdict().items() if key != "peak_share"}
        print(f"{name}: {len(measured.rows)} matmuls, mean error {error:.1%}")  # noqa: T201
    found["memory_share"] = memory_share(operators)
    return found | node_links(collectives) | network_links(collectives)


def main(words: Sequence[str]) -> None:
    """Print each constant as fitted and as constants.yaml has it."""
    now = StepConstants.read()
    for name, value in fitted(Path(words[0])).items():
        print(f"{name:32} {value:12.4g}   constants.yaml: {now[name]:.4g}")  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
