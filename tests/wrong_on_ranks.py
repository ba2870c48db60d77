"""Changes that spoil a trainer on its rank, for tests that a check sees it."""


def on_rank(trainer, settings):
    for parameter in trainer.strategy.plain.parameters():
        parameter.register_hook(lambda gradient: gradient * settings["times"])
    if trainer.rank == 1 and settings["apart"]:
        next(trainer.strategy.plain.parameters()).data.mul_(1.5)
