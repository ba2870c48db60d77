"""The account of a step of transformers' code against a dry run of the same program and recipe."""

import pytest

pytest.importorskip("transformers", reason="the extra `hf` brings it")

from account_pairs import LONG, MODELS, PAIRS, accounted_B, dry_run_B

from harness.records import Unavailable
from suites.training.layouts.account import worst_peak
from suites.training.layouts.layout import Layouts, Training
from suites.training.layouts.shape_of_config import shape_of_config


@pytest.mark.parametrize("one", PAIRS, ids=str)
def test_account_and_dry_run_agree(one):
    assert accounted_B(one) == pytest.approx(dry_run_B(one), rel=0.01)


@pytest.mark.long
@pytest.mark.parametrize("one", LONG, ids=str)
def test_they_agree_on_full_models(one):
    assert accounted_B(one) == pytest.approx(dry_run_B(one), rel=0.01)


def test_what_is_not_followed_is_refused():
    shape = shape_of_config(MODELS["llama 1B"])
    for row, training, named in (
        ({"tp": 2}, {}, "tp, pp, cp and ep"),
        ({"dp": 8, "zero": 1}, {}, "torchtitan with zero:1"),
        ({"dp": 8, "zero": 3}, {"precision": "fp8"}, "precision=fp8"),
        ({}, {"model_code": "mamba"}, "model_type 'mamba'"),
        ({}, {"attention": "unfused"}, "explicit attention"),
    ):
        asked = Training(**{"seq_len": 4096, "program": "torchtitan", "model_code": "llama", **training})
        with pytest.raises(Unavailable, match=named):
            worst_peak(shape, Layouts.of([row]), asked)
