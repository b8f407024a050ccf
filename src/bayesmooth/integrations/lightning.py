"""Lightning: a callback for gradient accumulation and for evaluation averaged over the posterior.

Automatic optimization takes IVON as it is; this adds the rest.
"""

from contextlib import ExitStack, suppress
from typing import Any

import torch

from bayesmooth import metrics as measures
from bayesmooth.calling import call_model, evaluating, take_inputs, take_labels, take_logits
from bayesmooth.errors import InputError, require
from bayesmooth.optim import IVON
from bayesmooth.optim.schedule import warn_if_nothing_is_learned

base = require("lightning.pytorch", "lightning")


class PosteriorCallback(base.Callback):  # type: ignore[misc, name-defined]
    """Micro-batches of one step at the same sample, and evaluations at the mean and averaged over the posterior.

    Clipping and mixed precision are Lightning's own; "16-mixed", and clipping in "bf16-mixed", need this callback.

    After each validation and test it logs `val_accuracy_mean`, `val_accuracy_averaged`, `val_nll_mean` and
    `val_nll_averaged` (`test_…`). Batches are (inputs, labels), and the module's `forward` gives logits.

    Arguments:
        samples: draws that are averaged; 0 leaves evaluations alone.
    """

    def __init__(self, samples: int = 16) -> None:
        self.samples = samples
        self._context, self._warned = ExitStack(), False

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Refuse several samples of a batch that comes once; let mixed precision clip gradients."""
        samples, batches = _ivon(trainer).param_groups[0]["mc_samples"], trainer.accumulate_grad_batches
        if samples > 1 and batches > 1:
            raise InputError(
                f"mc_samples={samples} with accumulate_grad_batches={batches}: a micro-batch is seen once only; "
                "set one of them to 1"
            )
        if samples > 1 and getattr(trainer.precision_plugin, "scaler", None) is not None:
            raise InputError(
                f"mc_samples={samples} with a GradScaler: must be 1, as Lightning then calls the model once per "
                "batch; use accumulate_grad_batches, or precision='bf16-mixed'"
            )
        _ivon(trainer)._step_supports_amp_scaling = False  # it clips after unscale_; else it refuses, in bfloat16, too

    def on_train_batch_start(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        """The weights become the sample of this step, which all of its micro-batches share."""
        ivon = _ivon(trainer)
        if pl_module.automatic_optimization and ivon.param_groups[0]["mc_samples"] == 1:
            self._context.enter_context(ivon.sampled_params(train=True, fresh=False))

    def on_train_batch_end(self, *_: Any) -> None:
        """Between two micro-batches the weights are the mean: a validation may come there."""
        self._context.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """The mean back, and no sample kept."""
        with suppress(type(exception)):
            self._context.__exit__(type(exception), exception, exception.__traceback__)

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Log both predictions' figures."""
        if not trainer.sanity_checking:
            self._log(trainer, pl_module, "val", trainer.val_dataloaders)

    def on_test_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Log both predictions' figures."""
        self._log(trainer, pl_module, "test", trainer.test_dataloaders)

    @torch.no_grad()
    def _log(self, trainer: Any, module: Any, name: str, loaders: Any) -> None:
        if not self.samples:
            return
        convert, loaders = trainer.precision_plugin.convert_input, loaders if isinstance(loaders, list) else [loaders]
        batches = [convert(batch) for loader in loaders for batch in loader]
        labels = torch.cat([take_labels(batch) for batch in batches]).cpu()
        with evaluating(module), trainer.precision_plugin.forward_context():
            outputs = [call_model(module, take_inputs(batch, module)) for batch in batches]
            averaged = _ivon(trainer).posterior(module).predict(module, batches, self.samples)
        mean = torch.cat([take_logits(output).float().softmax(-1) for output in outputs])
        fitting = trainer.state.fn == "fit"
        late = fitting and trainer.estimated_stepping_batches <= 3 * trainer.global_step
        if late and not self._warned:
            self._warned = warn_if_nothing_is_learned(measures.accuracy(mean.cpu(), labels), labels)
        for way, probabilities in {"mean": mean.cpu(), "averaged": averaged.cpu()}.items():
            figures = {
                f"{name}_accuracy_{way}": measures.accuracy(probabilities, labels),
                f"{name}_nll_{way}": measures.nll(probabilities, labels),
            }
            module.log_dict(figures, sync_dist=True, batch_size=len(labels))


def _ivon(trainer: Any) -> IVON:
    ivons = [optimizer for optimizer in trainer.optimizers if isinstance(optimizer, IVON)]
    if len(ivons) != 1:
        raise InputError(
            f"{len(ivons)} IVON optimizers: must be one; return it from configure_optimizers, and validate and test "
            "with the Trainer that has fitted: the posterior is in its optimizer"
        )
    return ivons[0]
