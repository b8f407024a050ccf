"""Before a run on data of the user's own, held-out given labels choose the best of IVON's grid, or a linear model."""

import torch

from bayesmooth import progress
from bayesmooth.fitting.choose import IVON_GRID, fit
from bayesmooth.fitting.linear import choose_rate, fit_linear
from bayesmooth.optim.schedule import ENOUGH
from bayesmooth.progress import format_percent
from bayesmooth.train.evaluate import SOURCE, prepare
from bayesmooth.train.loop import make_model
from bayesmooth.train.recipe import Recipe


def choose_settings(recipe: Recipe) -> Recipe:
    """The recipe with the choice of the held-out given labels: lr and noise of the network, or a linear model's prior.

    The network is taken where it predicts them better than the linear model by a standard error; fewer than `ENOUGH` of
    them do not tell, and rows of numbers get the linear model then. It needs no labels to stop by, so it learns from
    all of them. The choice stands in the recipe of the run, and so in its hash.
    """
    splits = prepare(recipe)
    flat = len(splits.train.input_shape) == 1
    if splits.validation is None or (len(splits.validation) < ENOUGH and not flat):
        return recipe
    parts = splits.train, splits.validation
    (inputs, labels), held = ((own.batch(torch.arange(len(own), device="cpu")), own.labels.numbers) for own in parts)
    classes, shape, quiet = splits.train.num_classes, splits.train.input_shape, progress.SILENT.get()
    tree, best, chosen, line = recipe.to_dict(), 0.0, "held-out labels:", None
    if flat:
        rows, given = torch.cat([inputs, held[0]]), torch.cat([labels, held[1]])
        line = fit_linear(rows, given, torch.arange(len(rows), device="cpu") >= len(inputs), classes)
        if dropped := int((~line.kept).sum()):
            chosen += f" without the {dropped:,} labels that the audit contradicts others are predicted better;"
            tree["data"]["audit"] = "drop"
            kept = line.kept[: len(inputs)]
            inputs, labels = inputs[kept], labels[kept]
    if len(splits.validation) >= ENOUGH:
        fit_result = fit(
            lambda: make_model(recipe, num_classes=classes, input_shape=shape),
            (inputs, labels),
            recipe.train.epochs,
            batch_size=recipe.train.batch_size,
            validation=held,
            grid=IVON_GRID,
            teach=False,
            stop=False,  # as the run of the recipe
            seed=recipe.train.seed,
            quiet=quiet,
        )
        tree["optimizer"] |= fit_result.setting
        best = max(row["accuracy"] for row in fit_result.table if row["trained"] == 1)
        chosen += f" a network predicts {format_percent(best)} of them,"
    if line is not None:
        chosen += f" a linear model {format_percent(line.accuracy)}"
        if line.is_level_with(best):
            tree["data"]["validation"], tree["model"]["hidden"] = 0.0, []
            decay = line.precision / int(line.kept.sum())
            rate = choose_rate(rows[line.kept], decay)
            tree["optimizer"] = {"name": "ivon", "lr": rate, "hess_init": 0.1, "weight_decay": decay}
            chosen += "; it is trained on all others" if dropped else "; it is trained on all labels"
    if not quiet:
        print(chosen.removesuffix(","))
    return Recipe.from_dict(tree, SOURCE)
