"""The training layer below the suites: model, data, optimizers, and one module per technique.

`techniques.build_step` describes a training step, `trainer.Trainer` runs it on real or fake tensors.
"""
