"""The training layer, on which suites stand: model, data, optimizers, and one home for each technique.

`techniques.build_step` describes a training step, `trainer.Trainer` runs it on real or fake tensors.
"""
