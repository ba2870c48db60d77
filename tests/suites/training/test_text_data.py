"""The text that suites train on: a Markov chain in which each word has a few followers, equally likely."""

import pytest
import torch

from suites.training.data import FOLLOWERS, batch, chain


@pytest.mark.parametrize("vocab_size", [FOLLOWERS, 67])
def test_each_word_is_followed_by_one_of_its_different_followers(vocab_size):
    rows = chain(vocab_size, 3)
    assert rows.shape == (vocab_size, FOLLOWERS)
    assert all(len(set(row)) == FOLLOWERS for row in rows.tolist())
    assert 0 <= rows.min() <= rows.max() < vocab_size
    tokens, targets = batch(vocab_size, (2, 50), 3, 1)
    assert tokens.shape == targets.shape == (2, 50)
    assert torch.equal(tokens[:, 1:], targets[:, :-1])
    assert (rows[tokens] == targets[..., None]).any(-1).all()


def test_a_batch_follows_from_its_seed_and_number():
    assert torch.equal(batch(67, (2, 50), 3, 1)[0], batch(67, (2, 50), 3, 1)[0])
    others = [batch(67, (2, 50), 3, 2)[0], batch(67, (2, 50), 4, 1)[0]]
    assert all(not torch.equal(one, batch(67, (2, 50), 3, 1)[0]) for one in others)


def test_followers_are_equally_likely():
    """Chi-squared over 20,000 words: 3 degrees of freedom, so above 16.3 once in 1,000 seeds."""
    tokens, targets = batch(8, (1, 20000), 0, 0)
    chosen = (chain(8, 0)[tokens] == targets[..., None]).sum((0, 1))
    expected = 20000 / FOLLOWERS
    assert float(((chosen - expected) ** 2 / expected).sum()) < 16.3
