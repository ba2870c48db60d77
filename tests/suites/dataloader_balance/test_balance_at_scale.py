"""Balance at scale: real lengths by their quantiles, costs fitted to timed steps, gains within bounds."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.config.run import load
from harness.config.validation import ConfigError
from harness.records import Origin, Unavailable, WrongResult
from suites.dataloader import dataloader_balance, document_seconds
from suites.dataloader.dataloader_balance import LengthTable, Subject
from suites.dataloader.document_seconds import MODEL, TimedStep, cost_of, fitted
from suites.dataloader.workload import DataloaderBalanceWorkload
from suites.training.balance import DocumentCost, loads

RUN = load(["suite=dataloader_balance"])[0]
DOCUMENTS = ["wikipedia", "textbooks", "source_code", "long_context"]
METHODS = ["in_order", "random", "greedy", "karmarkar_karp"]
COST = DocumentCost(1.0, 1e-4)


def subject(method="in_order", seed=0, cost=COST, **changed):
    fields = {"lengths_from": "published", "long_documents": "kept", "context_length": 4096, "groups": 16}
    fields |= {"documents_per_step": 16 * changed.get("groups", 16), "steps": 3}
    return Subject(DataloaderBalanceWorkload(**fields | changed), seed, cost, method)


def read(one, metric):
    return [reading.value for reading in dataloader_balance.sample(one) if reading.metric == metric]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_inverse_distribution_gives_the_committed_quantiles_and_mean(name):
    rows = {
        row["documents_of"]: row for row in map(json.loads, dataloader_balance.FILE.read_text().splitlines())
    }
    assert [*rows] == DOCUMENTS
    table = dataloader_balance.published_lengths()[name]
    probability, tokens = np.array(rows[name]["quantiles"]).T
    assert probability[0] == 0
    assert probability[-1] == 1
    assert (np.diff(probability) > 0).all()
    assert (np.diff(tokens) >= 0).all()
    assert table.at(probability).tolist() == tokens.tolist()
    drawn = table.draw(400_000, np.random.default_rng(0))
    at = np.quantile(drawn, probability[1:-1])
    common = probability[1:-1] <= 0.99
    assert at[common] == pytest.approx(tokens[1:-1][common], rel=0.05, abs=1)
    assert drawn.mean() == pytest.approx(rows[name]["mean"], rel=0.07)


def test_between_two_quantiles_the_logarithm_is_linear():
    table = LengthTable(np.array([0.0, 0.5, 1.0]), np.array([1, 100, 10_000]), "")
    assert table.at(np.array([0.25, 0.75])).tolist() == [10, 1000]


@settings(deadline=None, derandomize=True, max_examples=60)
@given(linear=st.floats(1e-9, 1e-3), attention=st.floats(0.001, 100))
def test_a_fit_finds_the_cost_that_steps_were_made_from(linear, attention):
    """`attention`: its time over all other in a document of 8,192 tokens. One step of each length is slow."""
    made = DocumentCost(linear, linear * attention / 8192)
    steps_made = [
        TimedStep(n, 16384, 16384 * (made.linear + made.quadratic * n) * factor)
        for n in (256, 1024, 8192)
        for factor in (1, 3, 1)
    ]
    found = fitted(steps_made)
    assert found.linear == pytest.approx(made.linear, rel=1e-6)
    assert found.quadratic == pytest.approx(made.quadratic, rel=1e-6, abs=0)


def test_a_fit_refuses_steps_of_a_busy_host():
    with pytest.raises(WrongResult, match="time the steps again"):
        fitted([TimedStep(256, 4096, 2.0), TimedStep(4096, 4096, 1.0)])


def test_committed_steps_are_of_the_model_that_the_workloads_have():
    first, timed = document_seconds.recorded()
    assert first["model"] == MODEL
    assert {one.document_tokens for one in timed} == {256 << power for power in range(6)}
    cost = fitted(timed)
    for length in {one.document_tokens for one in timed}:
        seconds = np.median([one.seconds / one.tokens for one in timed if one.document_tokens == length])
        assert cost.linear + cost.quadratic * length == pytest.approx(seconds, rel=0.15)
    workload = DataloaderBalanceWorkload(**RUN.workloads["textbooks_16k_1024"])
    assert cost_of(workload) == cost
    with pytest.raises(Unavailable, match="hidden_size=512"):
        cost_of(replace(workload, hidden_size=1024))
    with pytest.raises(Unavailable, match="expected a causal language model"):
        cost_of(replace(workload, causal=False))


def test_the_file_of_steps_is_printed_anew(monkeypatch, capsys):
    monkeypatch.setattr(document_seconds, "LONGEST", 32)
    monkeypatch.setattr(document_seconds, "SHORTEST", 16)
    monkeypatch.setattr(document_seconds, "REPETITIONS", 1)
    document_seconds.main()
    first, *others = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["model"] == MODEL
    assert [TimedStep(**one)[:2] for one in others] == [(16, 32), (32, 32)]


def test_a_step_is_timed_once_for_all_variants(monkeypatch):
    monkeypatch.setattr(document_seconds, "TIMED_TOKENS", 64)
    monkeypatch.setattr(document_seconds, "TIMED_LENGTHS", (16, 64))
    monkeypatch.setattr(document_seconds, "fitted", lambda steps: DocumentCost(steps[0].seconds, 0.0))
    fields = RUN.workloads["textbooks_timed_1024"] | {"hidden_size": 16, "intermediate_size": 8}
    fields |= {"groups": 2, "documents_per_step": 8, "steps": 1}
    document_seconds._timed_once.cache_clear()
    first, second = (dataloader_balance.build(fields, seed) for seed in (0, 1))
    assert first.cost == second.cost
    timed = [one for one in dataloader_balance.sample(first) if one.metric == "timed_step"]
    assert [one.method for one in timed] == ["16 tokens", "64 tokens"] * document_seconds.REPETITIONS
    assert {one.origin for one in timed} == {Origin.MEASURED}
    document_seconds._timed_once.cache_clear()


@pytest.mark.parametrize("documents_of", DOCUMENTS)
@pytest.mark.parametrize("groups", [2, 8, 64])
def test_no_gain_is_above_the_number_of_groups(documents_of, groups):
    for method in METHODS:
        one = subject(method, documents_of=documents_of, groups=groups)
        dataloader_balance.check(one)
        assert 0 < max(read(one, "speedup")) <= groups * (1 + 1e-9)
        assert max(read(one, "slowest_over_mean")) <= groups * (1 + 1e-9)


def test_a_gain_reaches_the_number_of_groups_where_one_document_is_everything():
    """One document of 4 contexts and three of one token: kept together, one group has all the work."""
    listed = {"lengths_from": "list", "lengths": [4 * 4096, 1, 1, 1], "groups": 4, "documents_per_step": 4}
    (gain,) = read(subject("greedy", **listed, steps=1), "speedup")
    assert gain == pytest.approx(4, rel=1e-3)
    assert read(subject("greedy", **listed, steps=1, long_documents="spread"), "speedup") == [
        pytest.approx(1, rel=1e-3)
    ]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("tokens", [700, 4096, 10_000])
def test_identical_documents_gain_nothing(method, tokens):
    one = subject(method, lengths_from="list", lengths=[tokens], documents_per_step=16 * 6)
    if tokens > one.workload.context_length and method in METHODS[2:]:
        assert min(read(one, "speedup")) >= 1 - 1e-9  # its parts differ, and may be assigned apart
    else:
        assert read(one, "speedup") == pytest.approx([1.0] * 3, rel=1e-12)


@pytest.mark.parametrize("long_documents", ["kept", "spread"])
def test_every_variant_has_the_same_documents(long_documents):
    items = [
        dataloader_balance.items_of(subject(method, long_documents=long_documents), 2) for method in METHODS
    ]
    for one in items[1:]:
        assert all(np.array_equal(mine, other) for mine, other in zip(one, items[0], strict=True))
    other = dataloader_balance.items_of(subject(long_documents="kept"), 2)
    assert np.array_equal(items[0].parts, other.parts)


@pytest.mark.parametrize("method", METHODS[:2])
def test_parts_of_a_long_document_stay_in_one_group_where_they_are_dealt_together(method):
    kept = subject(method, documents_of="textbooks")
    items = dataloader_balance.items_of(kept, 0)
    group_of = dataloader_balance.planned(kept, items)
    assert len(items.parts) > kept.workload.documents_per_step
    for document in np.unique(items.dealt[items.parts == 4096]):
        assert len({*group_of[items.dealt == document].tolist()}) == 1
    assert np.bincount(items.dealt, items.parts).sum() == items.parts.sum()
    each = np.bincount(group_of[np.unique(items.dealt, return_index=True)[1]])
    assert each.tolist() == [16] * 16


def test_kept_documents_are_never_faster_dealt_than_the_largest_document_allows():
    items = dataloader_balance.items_of(subject(documents_of="textbooks"), 1)
    documents = loads(items.costs, items.dealt, int(items.dealt[-1]) + 1)
    load = loads(items.costs, dataloader_balance.dealt(items, 16, "in_order"), 16)
    assert load.max() >= documents.max()


def test_a_prediction_is_compared_with_the_published_gain():
    readings = [*dataloader_balance.sample(subject("greedy", published_gain=2.0))]
    by_metric = {one.metric: one for one in readings}
    gain = np.mean([one.value for one in readings if one.metric == "speedup"])
    assert by_metric["prediction_error"].value == pytest.approx(gain / 2 - 1)
    assert by_metric["published_gain"].origin == Origin.PUBLISHED
    assert "prediction_error" not in {
        one.metric for one in dataloader_balance.sample(subject(published_gain=2.0))
    }


def test_seconds_are_no_flop():
    flop = {one.metric: one.unit for one in dataloader_balance.sample(subject())}
    measured = dataloader_balance.build(RUN.workloads["textbooks_16k_2"] | {"steps": 1}, 0)
    seconds = {one.metric: one.unit for one in dataloader_balance.sample(measured)}
    assert (flop["step_cost"], seconds["step_time"]) == ("1", "s")
    assert "step_cost" not in seconds


@pytest.mark.parametrize("override", ["long_documents=kept", "cost=guessed", "documents_of=books"])
def test_bad_workloads_are_refused(override):
    with pytest.raises(ConfigError, match=override.partition("=")[0]):
        load(["suite=dataloader_balance", f"suite.workloads.rows_4k_64.{override}"])
