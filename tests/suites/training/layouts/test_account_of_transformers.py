"""The account of a step of transformers' code against a dry run of the same program and recipe."""

import pytest

pytest.importorskip("transformers", reason="the extra `hf` brings it")

from account_pairs import LONG, PAIRS, accounted_B, dry_run_B


@pytest.mark.parametrize("one", PAIRS, ids=str)
def test_account_and_dry_run_agree(one):
    assert accounted_B(one) == pytest.approx(dry_run_B(one), rel=0.01)


@pytest.mark.long
@pytest.mark.parametrize("one", LONG, ids=str)
def test_they_agree_on_full_models(one):
    assert accounted_B(one) == pytest.approx(dry_run_B(one), rel=0.01)
