from bayesmooth.losses import LOSSES
from bayesmooth.optim import OPTIMIZERS
from bayesmooth.train import Recipe


def test_every_loss_and_optimizer_can_be_chosen_with_its_own_arguments_as_options():
    for name in LOSSES:
        needed = {"weight": 0.1} if name == "als" else {}
        assert Recipe.from_dict({"loss": {"name": name, **needed}}).loss.name == name
    for name in OPTIMIZERS:
        assert (
            Recipe.from_dict({"optimizer": {"name": name, "lr": 0.1}}).optimizer.options["lr"]
            == 0.1
        )


def test_the_arguments_of_sam_are_its_own_and_those_of_the_optimizer_it_wraps():
    options = Recipe.from_dict(
        {"optimizer": {"name": "sam", "rho": 0.1, "momentum": 0.9}}
    ).optimizer.options
    assert (options["rho"], options["momentum"]) == (0.1, 0.9)
