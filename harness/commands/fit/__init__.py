"""`python -m harness.fit`: does a training step of a model fit a device?"""
