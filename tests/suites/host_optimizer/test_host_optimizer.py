"""The host_optimizer suite: each variant against float64, wrong updates caught, tensors shared."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import psutil
import pytest
import torch
import variants

from harness.config.run import load
from harness.records import Origin, Status, WrongResult
from harness.sweep.failure_classification import of_exception
from suites.offload import host_optimizer

ARMS = {variant.name: variant for variant in load(["suite=host_optimizer"])[0].variants}
SMALL = {"parameters": 50_000}


@pytest.fixture(autouse=True)
def _small_copies(monkeypatch):
    monkeypatch.setattr(host_optimizer, "COPY_B", 2**20)


def applied(variant, **workload):
    if reason := variants.unavailable("host_optimizer", ARMS[variant]):
        pytest.skip(reason)
    subject = host_optimizer.build({**SMALL, **workload}, seed=1)
    return variants.applied("host_optimizer", ARMS[variant], subject)


def closed_form(p, g, updates):
    """Return AdamW from zero moments with a constant gradient, whose corrected moments are its powers."""
    direction = g / (abs(g) + 1e-8)
    kept = 1 - 1e-3 * 0.01
    moved = sum(kept ** (updates - k) for k in range(1, updates + 1))
    return p * kept**updates - 1e-3 * direction * moved, (1 - 0.9**updates) * g, (1 - 0.999**updates) * g * g


def test_the_reference_is_the_closed_form():
    for p, g in ((1.5, -0.3), (-4.0, 2.0), (0.0, 1e-9), (3.0, 0.0)):
        given = [torch.tensor([value], dtype=torch.float64) for value in (p, g, 0.0, 0.0)]
        ours = [float(one) for one in host_optimizer.adamw(*given)]
        assert ours == pytest.approx(closed_form(p, g, host_optimizer.UPDATES), rel=1e-12, abs=1e-18)


@pytest.mark.timeout(900)  # DeepSpeed compiles for minutes, the first time on a machine
@pytest.mark.parametrize(("variant", "tensors"), [("baseline", 1), *((one, 5) for one in ARMS)])
def test_a_variant_gives_what_the_closed_form_gives(variant, tensors):
    ours = applied(variant, tensors=tensors)
    session = host_optimizer.prepare(ours)
    begun = [one.parameter.detach().clone() for one in session.tensors]
    host_optimizer.check(session)
    assert 0 < session.max_error <= host_optimizer.TOLERANCE
    for before, (parameter, *moments) in zip(begun, session.tensors, strict=True):
        assert parameter.numel() == 50_000 // tensors
        for place in (0, 7, -1):
            values = (before, parameter.grad, *moments, parameter.detach())
            p, g, *found = (float(one[place]) for one in values)
            after, *moments_due = closed_form(p, g, host_optimizer.UPDATES)
            assert found[:2] == pytest.approx(moments_due, rel=1e-4)
            assert found[2] - p == pytest.approx(after - p, rel=1e-3, abs=1e-6)


class Untouched(torch.optim.AdamW):
    """Leaves the end of each vector, as a kernel does whose last vector is not whole."""

    def step(self, closure=None):
        vectors = self.param_groups[0]["params"]
        ends = [one[-7:].detach().clone() for one in vectors]
        super().step(closure)
        with torch.no_grad():
            for one, end in zip(vectors, ends, strict=True):
                one[-7:] = end


WRONG = {
    "no decay": partial(torch.optim.AdamW, lr=1e-3, weight_decay=0.0),
    "decay in the gradient": partial(torch.optim.Adam, lr=1e-3, weight_decay=0.01),
    "another rate": partial(torch.optim.AdamW, lr=1.01e-3, weight_decay=0.01),
    "another second moment": partial(torch.optim.AdamW, lr=1e-3, betas=(0.9, 0.998), weight_decay=0.01),
    "a large epsilon": partial(torch.optim.AdamW, lr=1e-3, eps=1e-4, weight_decay=0.01),
    "the end untouched": partial(Untouched, lr=1e-3, weight_decay=0.01),
}


def test_a_wrong_update_is_caught_and_moments_that_start_elsewhere():
    right = applied("baseline")
    for make in WRONG.values():
        with pytest.raises(WrongResult, match="of the largest movement, allowed 1e-03"):
            host_optimizer.check(host_optimizer.prepare(replace(right, make=make)))
    with pytest.raises(WrongResult, match="parameter 0 of three vectors"):
        host_optimizer.check(host_optimizer.prepare(replace(right, count=partial(torch.tensor, 1.0))))


def test_what_does_not_fit_is_refused_before_it_is_tried(monkeypatch):
    free = SimpleNamespace(available=11.9e9)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    ours = host_optimizer.build({"parameters": 500_000_000}, seed=1)
    with pytest.raises(MemoryError, match=r"500,000,000 .* take 12\.0 GB, and 11\.9 GB are free") as told:
        host_optimizer.shared(ours)
    assert of_exception(told.value, "suites")[0] is Status.OUT_OF_MEMORY


@pytest.mark.parametrize(("variant", "temporaries_B"), [("baseline", 8), ("adamw_fused", 0)])
def test_readings_agree_with_one_another_and_with_the_formula(variant, temporaries_B):
    ours = host_optimizer.prepare(applied(variant))
    host_optimizer.check(ours)
    once = list(host_optimizer.read_once(ours))
    found = {one.metric: one.value for one in once}
    assert found["bytes_moved"] == 4 * (3 + 4) * 50_000
    assert found["peak_memory"] == pytest.approx(temporaries_B * 50_000, abs=2_000)
    assert 0 <= found["page_faults"] < 1_000
    copies = [one for one in once if one.metric == "copy_bandwidth"]
    assert len(copies) == host_optimizer.COPIES
    assert all(one.origin == Origin.MEASURED and one.value > 0 for one in copies)
    time, bandwidth = (one for one in host_optimizer.sample(ours) if one.metric in ("time", "bandwidth"))
    assert (time.unit, time.method, bandwidth.unit) == ("s", "warm", "B/s")
    assert bandwidth.value * time.value == pytest.approx(found["bytes_moved"])
