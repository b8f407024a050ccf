"""Hugging Face: a callback with which `Trainer` trains with IVON.

    how = (IVON, {"lr": 0.1, "ess": len(data)})
    trainer = Trainer(model, args, …, optimizer_cls_and_kwargs=how, callbacks=[IVONCallback(auto=True)])

Accelerate needs nothing of this: `accelerator.prepare(optimizer)` takes IVON as it is (docs/integrations.md).
"""

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from bayesmooth import metrics as measures
from bayesmooth.errors import InputError
from bayesmooth.optim import IVON
from bayesmooth.optional import require
from bayesmooth.posterior import Posterior

base = require("transformers", "huggingface")
accelerate = require("accelerate", "huggingface")

ENOUGH = 100  # rows of an evaluation that tell an accuracy from chance


class IVONCallback(base.TrainerCallback):  # type: ignore[misc, name-defined]
    """Every optimizer step of a `Trainer` at a sample of the weights, and its evaluations averaged over the posterior.

    The sample is entered before the first micro-batch of a step and left after clipping: gradient accumulation,
    clipping and mixed precision are the Trainer's own. Checkpoints and evaluations see the mean.

    With `auto` it sets the optimizer at the start of a run as `IVON.auto` does: the Trainer says how many epochs and
    steps it has, and its scheduler goes on from the rate that is chosen. Without, it warns when the `steps` that the
    optimizer was given are not those of the run.

    After each evaluation, `eval_averaged_accuracy`, `eval_averaged_nll` and, at the mean, `eval_mean_accuracy` are
    added to its metrics, so that `metric_for_best_model="averaged_nll"` works; labels must be class numbers.

    Trainer does not tell its callbacks of an exception. After one, Ctrl-C too, call `close()` before you use the model:
    its weights are a sample until then. The next `train()` does it, too.

    Arguments:
        samples: draws that an evaluation averages; 0 leaves evaluations alone.
        auto: choose the optimizer's settings, but for `ess` and those of a dict given here, as in
            `auto={"noise": 0.5}`; a resumed run keeps the settings that it began with.
    """

    def __init__(self, samples: int = 16, auto: bool | dict[str, Any] = False) -> None:
        self.samples, self.auto = samples, auto
        self._context, self._warned = ExitStack(), False

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Refuse another optimizer, and one that wants several samples of a batch that comes once."""
        self.close()
        optimizer = _unwrapped(given["optimizer"])
        if (samples := optimizer.param_groups[0]["mc_samples"]) > 1:
            raise InputError(
                f"mc_samples={samples}: must be 1, as Trainer calls the model once per batch; use accumulation"
            )
        if self.auto:
            if not optimizer.state:  # else it is resumed
                _set_auto(optimizer, state, given, self.auto if isinstance(self.auto, dict) else {})
            return
        told, steps = optimizer.steps, state.max_steps
        if told and not steps / 1.5 <= told <= steps * 1.5:  # β₂ = 1 − 2/steps is far off
            warnings.warn(
                f"IVON was told steps={told}, and this run has {steps}: give steps={steps}, or set "
                "IVONCallback(auto=True)",
                stacklevel=2,
            )

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
        chance = 1 / averaged.shape[-1]
        enough = len(labels) >= ENOUGH and state.global_step
        if enough and accuracy <= chance and not self._warned:
            self._warned = True
            lr = _unwrapped(optimizer).param_groups[0].get("initial_lr", 0.0)
            warnings.warn(
                f"accuracy at the mean is {accuracy:.1%}, no more than chance ({chance:.1%}): "
                f"lower lr from {lr:.3g} to about {lr / 3:.2g}, or halve the noise: "
                "IVONCallback(auto={'noise': 0.5})",
                stacklevel=2,
            )
        prefix = next(key for key in metrics if key.endswith("_runtime")).removesuffix("runtime")
        found = {
            f"{prefix}averaged_accuracy": measures.accuracy(averaged, labels),
            f"{prefix}averaged_nll": measures.nll(averaged, labels),
            f"{prefix}mean_accuracy": accuracy,
        }
        metrics.update(found)
        state.log_history.append({**found, "step": state.global_step})

    def close(self) -> None:
        """Put the mean back where an exception has left a sample in the weights; the sample is dropped."""
        with suppress(InterruptedError):
            self._context.__exit__(InterruptedError, InterruptedError(), None)


def _unwrapped(optimizer: Any) -> IVON:
    """The IVON inside Accelerate's wrapper."""
    inner = getattr(optimizer, "optimizer", optimizer)
    if not isinstance(inner, IVON):
        raise InputError(
            f"the optimizer is {type(inner).__name__}: must be IVON; give Trainer optimizers=(IVON(…), scheduler)"
        )
    return inner


def _set_auto(optimizer: IVON, state: Any, given: dict[str, Any], settings: dict[str, Any]) -> None:
    """Put what `IVON.auto` chooses into an optimizer that has not stepped yet, and the rate into its scheduler."""
    first = optimizer.param_groups[0]
    schedule = getattr(given["lr_scheduler"], "scheduler", given["lr_scheduler"])
    own = {"ess": first["ess"], "seed": first["seed"], "steps": state.max_steps}
    model, loader, epochs = given["model"], given["train_dataloader"], state.num_train_epochs
    chosen = IVON.auto(model, loader, epochs, **own, **settings).param_groups[0]
    for group in optimizer.param_groups:
        group |= {name: chosen[name] for name in ("hess_init", "beta2", "rescale_lr")}
        factor = chosen["lr"] / group["initial_lr"] if group["initial_lr"] else 0.0
        group["lr"], group["initial_lr"] = group["lr"] * factor, chosen["lr"]
    schedule.base_lrs = [chosen["lr"] for _ in schedule.base_lrs]


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
