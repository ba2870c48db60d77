"""The settings of AdamW (arXiv 1711.05101) where it is written out: torch.optim.AdamW's defaults."""

LEARNING_RATE = 1e-3
BETAS = (0.9, 0.999)
EPSILON = 1e-8
WEIGHT_DECAY = 0.01
