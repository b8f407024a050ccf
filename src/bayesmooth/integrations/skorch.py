"""skorch: a classifier that trains with IVON, `ess` from the data of each fold, probabilities averaged."""

from typing import Any

import numpy as np
from torch import nn

from bayesmooth.optim import IVON
from bayesmooth.optional import require

base = require("skorch", "skorch")

UNKNOWN = 1e-9  # an `ess` that no data has


class IVONNet(base.NeuralNetClassifier):  # type: ignore[misc, name-defined]
    """`skorch.NeuralNetClassifier` with IVON inside; the module gives logits.

    `ess` is the number of examples that `fit` trains on, the validation split left out: right inside cross-validation.
    `optimizer__ess` fixes it. All other settings are skorch's: `lr`, `optimizer__hess_init`, `max_epochs`, …

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
        """skorch's, with an `ess` that `get_split_datasets` puts right before the first step."""
        args, kwargs = super().get_params_for_optimizer(prefix, named_parameters)
        return args, {"ess": UNKNOWN, **kwargs}

    def get_split_datasets(self, X: Any, y: Any = None, **fit_params: Any) -> Any:
        """skorch's; the size of the training part is `ess`, where nobody has set it."""
        train, valid = super().get_split_datasets(X, y, **fit_params)
        for group in self.optimizer_.param_groups:
            if group["ess"] == UNKNOWN:
                group["ess"] = float(len(train))
        return train, valid

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
