"""Hugging Face: `fit_trainer` lets held-out labels choose the settings of a `Trainer`; a callback for one run.

    result = fit_trainer(Trainer(model_init=make_model, args=args, train_dataset=data))

    optimizer = (IVON, {"lr": 0.03, "noise": 1.0, "ess": len(data)})
    trainer = Trainer(model, args, …, optimizer_cls_and_kwargs=optimizer, callbacks=[IVONCallback()])

Accelerate needs nothing of this: `accelerator.prepare(optimizer)` takes IVON as it is (docs/integrations.md).
"""

from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from bayesmooth import metrics as measures
from bayesmooth.errors import InputError, require
from bayesmooth.fitting import Fit, fit
from bayesmooth.optim import IVON
from bayesmooth.optim.schedule import warn_if_nothing_is_learned
from bayesmooth.optim.settings import choose_beta2
from bayesmooth.posterior import Posterior

base = require("transformers", "huggingface")
accelerate = require("accelerate", "huggingface")

UNSET_BETA2 = 0.99999  # IVON's default where it knows no steps


def fit_trainer(trainer: Any, **options: Any) -> Fit:
    """`bayesmooth.fit` with the parts of a Trainer, whose model then has the weights that held-out labels chose.

    `model_init`, data sets, collator, batch size and epochs are the Trainer's. Held-out labels are those of its
    `eval_dataset`, or a part of the training set where there is none. Optimizer, schedule and precision are those of
    `fit`, which runs in one process; it costs three runs.

    Arguments:
        trainer: made with `model_init`, as every setting starts with a network of its own.
        options: other arguments of `bayesmooth.fit`.
    """
    if trainer.model_init is None:
        raise InputError("the Trainer has no model_init, which every setting needs; give it one in place of model")
    args, loader = trainer.args, trainer.get_train_dataloader()
    steps = args.max_steps * args.gradient_accumulation_steps  # −1: the epochs count
    given = {
        "data": DataLoader(loader.dataset, args.train_batch_size, shuffle=True, collate_fn=loader.collate_fn),
        "epochs": steps / len(loader) if steps > 0 else args.num_train_epochs,
        "validation": trainer.get_eval_dataloader() if trainer.eval_dataset else None,
    }
    result = fit(lambda: trainer.call_model_init().to(args.device), **{**given, **options})
    trainer.model.load_state_dict(result.model.state_dict())
    return result


class IVONCallback(base.TrainerCallback):  # type: ignore[misc, name-defined]
    """Every optimizer step of a `Trainer` at a sample of the weights, and its evaluations averaged over the posterior.

    The sample is entered before the first micro-batch of a step and left after clipping: gradient accumulation,
    clipping and mixed precision are the Trainer's own. Checkpoints and evaluations see the mean.

    An optimizer that was not told the `steps` of the run learns them from the Trainer, and β₂ follows from them.

    After each evaluation, `eval_averaged_accuracy`, `eval_averaged_nll` and, at the mean, `eval_mean_accuracy` are
    added to its metrics, so that `metric_for_best_model="averaged_nll"` works; labels must be class numbers.

    Trainer does not tell its callbacks of an exception. After one, Ctrl-C too, call `close()` before you use the model:
    its weights are a sample until then. The next `train()` does it, too.

    Arguments:
        samples: draws that an evaluation averages; 0 leaves evaluations alone.
    """

    def __init__(self, samples: int = 16) -> None:
        self.samples = samples
        self._context, self._warned = ExitStack(), False

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Refuse another optimizer, and one that wants several samples of a batch that comes once."""
        self.close()
        optimizer = _unwrapped(given["optimizer"])
        if (samples := optimizer.param_groups[0]["mc_samples"]) > 1:
            raise InputError(f"mc_samples={samples}: must be 1, as Trainer calls the model once per batch; accumulate")
        if optimizer.steps is None and not optimizer.state:  # else it is resumed
            optimizer.steps = state.max_steps
            for group in optimizer.param_groups:
                if group["beta2"] == UNSET_BETA2:
                    group["beta2"] = choose_beta2(state.max_steps)

    def on_step_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """The weights become a sample."""
        self.close()
        self._context.enter_context(_unwrapped(given["optimizer"]).sampled_params(train=True))

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """The mean is back; the optimizer keeps the sample and its gradients for its step."""
        self._context.close()

    def on_evaluate(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Add the averaged figures to the metrics and to the log."""
        optimizer = given.get("optimizer")
        if not self.samples or optimizer is None:
            return
        model, loader, metrics = given["model"], given["eval_dataloader"], given["metrics"]
        posterior = _unwrapped(optimizer).posterior(model)
        averaged, labels = _predict(posterior, model, loader, self.samples)
        point = replace(posterior, std={n: 0 * std for n, std in posterior.std.items()})
        accuracy = measures.accuracy(_predict(point, model, loader, 1)[0], labels)
        if 3 * state.global_step >= state.max_steps and not self._warned:
            self._warned = warn_if_nothing_is_learned(accuracy, labels)
        prefix = next(key for key in metrics if key.endswith("_runtime")).removesuffix("runtime")
        figures = {
            f"{prefix}averaged_accuracy": measures.accuracy(averaged, labels),
            f"{prefix}averaged_nll": measures.nll(averaged, labels),
            f"{prefix}mean_accuracy": accuracy,
        }
        metrics.update(figures)
        state.log_history.append({**figures, "step": state.global_step})

    def close(self) -> None:
        """Put the mean back where an exception has left a sample in the weights; the sample is dropped."""
        with suppress(InterruptedError):
            self._context.__exit__(InterruptedError, InterruptedError(), None)


def _unwrapped(optimizer: Any) -> IVON:
    """The IVON inside Accelerate's wrapper."""
    inner = getattr(optimizer, "optimizer", optimizer)
    if not isinstance(inner, IVON):
        raise InputError(f"the optimizer is {type(inner).__name__}: must be IVON; give optimizers=(IVON(…), scheduler)")
    return inner


def _predict(posterior: Posterior, model: Any, loader: Any, samples: int) -> tuple[Tensor, Tensor]:
    """Averaged probabilities and labels of every row, also of those that went to other processes."""
    labels: list[Tensor] = []

    def batches() -> Iterator[Any]:
        for batch in loader:
            labels.append(batch["labels"])
            yield batch

    averaged = posterior.predict(model, batches(), samples)
    rows = torch.split(averaged, [len(part) for part in labels])
    gathered = [accelerate.utils.gather(part) for part in zip(rows, labels, strict=True)]
    if loader.remainder > 0:  # the last batch is padded, so that every process gets as many rows
        gathered[-1] = [column[: loader.remainder] for column in gathered[-1]]
    every, given = (torch.cat(column).cpu() for column in zip(*gathered, strict=True))
    return every, given
