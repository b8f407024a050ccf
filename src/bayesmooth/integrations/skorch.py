"""skorch: a classifier that trains with IVON, `ess` from the data of each fold, probabilities averaged."""

from typing import Any

import numpy as np
from torch import nn

from bayesmooth.optim import IVON
from bayesmooth.optim.auto import auto_beta2, auto_hess_init
from bayesmooth.optional import require

base = require("skorch", "skorch")


class IVONNet(base.NeuralNetClassifier):  # type: ignore[misc, name-defined]
    """`skorch.NeuralNetClassifier` with IVON inside; the module gives logits.

    `ess` is the number of examples that `fit` trains on, the validation split left out: right inside cross-validation.
    `optimizer__ess` fixes it. `optimizer__hess_init="auto"` and `optimizer__beta2="auto"` take the length of training
    from `max_epochs`. All other settings are skorch's.

    Arguments:
        module: a network of logits, or its class.
        samples: draws that `predict_proba` averages; 0 predicts at the mean.
    """

    def __init__(
        self,
        module: Any,
        *args: Any,
        criterion: Any = nn.CrossEntropyLoss,
        optimizer: Any = IVON,
        lr: float = 0.1,
        samples: int = 16,
        **kwargs: Any,
    ) -> None:
        super().__init__(module, *args, criterion=criterion, optimizer=optimizer, lr=lr, **kwargs)
        self.samples = samples

    def get_params_for_optimizer(self, prefix: str, named_parameters: Any) -> Any:
        """skorch's, and place-holders for what `get_split_datasets` knows before the first step."""
        args, self._given = super().get_params_for_optimizer(prefix, named_parameters)
        holders = {"ess": 1.0}
        holders |= {"epochs": 1} if self._is_auto("hess_init", "epochs") else {}
        holders |= {"steps": 2} if self._is_auto("beta2", "steps") else {}
        return args, holders | self._given

    def _is_auto(self, setting: str, length: str) -> bool:
        """As in IVON: asked for, or not set although the length of training is given."""
        value = self._given.get(setting)
        return value == "auto" or (value is None and length in self._given)

    def get_split_datasets(self, X: Any, y: Any = None, **fit_params: Any) -> Any:
        """skorch's; an optimizer that has made no step learns the size of the training part."""
        train, valid = super().get_split_datasets(X, y, **fit_params)
        if not self.optimizer_.state:
            self._settle(len(train), len(self.get_iterator(train, training=True)))
        return train, valid

    def _settle(self, examples: int, batches: int) -> None:
        length = {"epochs": self.max_epochs, "steps": self.max_epochs * batches}
        given = {"ess": float(examples)} | length | self._given
        for group in self.optimizer_.param_groups:
            group["ess"] = given["ess"]
            if self._is_auto("beta2", "steps"):
                group["beta2"] = auto_beta2(given["steps"])
            if self._is_auto("hess_init", "epochs") and group["rescale_lr"]:
                wanted = {name: group[name] for name in ("lr", "ess", "weight_decay")}
                wanted |= {"epochs": given["epochs"], "noise": given.get("noise")}
                group["hess_init"] = auto_hess_init(self.optimizer_.param_groups, **wanted)

    def predict_proba(self, X: Any) -> np.ndarray[Any, Any]:
        """Class probabilities averaged over the posterior."""
        cached = "forward_iter" in vars(
            self
        )  # skorch's scoring lends its predictions, for one reading
        if cached or not self.samples:
            return np.asarray(super().predict_proba(X))
        posterior, total = self.optimizer_.posterior(self.module_), 0.0
        for index in range(self.samples):
            with posterior.sample(self.module_, index, antithetic=True):
                total = total + super().predict_proba(X)
        return np.asarray(total / self.samples)
