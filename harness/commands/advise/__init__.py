"""`python -m harness.advise`: the fastest layouts of a training step on a cluster, with intervals."""
