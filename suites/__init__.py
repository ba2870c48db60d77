"""One package a suite: how the baseline and each optimization is done."""
