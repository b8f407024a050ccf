"""skorch: a classifier that trains with IVON, `ess` from the data of each fold, probabilities averaged."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import nn

from bayesmooth.optim import IVON
from bayesmooth.optional import require

base = require("skorch", "skorch")


class IVONNet(base.NeuralNetClassifier):  # type: ignore[misc, name-defined]
    """`skorch.NeuralNetClassifier` with IVON inside; the module gives logits.

    `ess` is the number of examples that `fit` trains on, the validation split left out: right inside cross-validation.
    β₂ follows from `max_epochs`. Noise and step are relative to the weights: `GridSearchCV` over lr and
    `optimizer__noise` lets the data choose them. `optimizer__hess_init` is alg:ivon. All other settings are skorch's.

    Arguments:
        module: a network of logits, or its class.
        samples: draws that `predict_proba` averages; 0 predicts at the mean.
    """

    # Place-holders until `fit` has the data.
    _known: Mapping[str, float] = {"ess": 1.0, "steps": 1}

    def __init__(
        self,
        module: Any,
        *args: Any,
        criterion: Any = nn.CrossEntropyLoss,
        optimizer: Any = IVON,
        lr: float = 0.03,
        samples: int = 16,
        **kwargs: Any,
    ) -> None:
        super().__init__(module, *args, criterion=criterion, optimizer=optimizer, lr=lr, **kwargs)
        self.samples = samples

    def get_params_for_optimizer(self, prefix: str, named_parameters: Any) -> Any:
        """What skorch gives, and what `fit` knows of the data and the length of training."""
        args, given = super().get_params_for_optimizer(prefix, named_parameters)
        relative = {} if {"hess_init", "weight_decay"} & given.keys() else {"noise": 1.0}
        return args, {**self._known, **relative, **given}

    def get_split_datasets(self, X: Any, y: Any = None, **fit_params: Any) -> Any:
        """What skorch gives; an optimizer that has made no step takes its settings from the training part."""
        train, valid = super().get_split_datasets(X, y, **fit_params)
        if not self.optimizer_.state:
            steps = self.max_epochs * len(self.get_iterator(train, training=True))
            self._known = {"ess": float(len(train)), "steps": steps}
            learned = self.get_all_learnable_params()
            args, settings = self.get_params_for_optimizer("optimizer", learned)
            fresh = self.optimizer(*args, **settings)
            # The old one stays, because schedulers hold it.
            for group, new in zip(self.optimizer_.param_groups, fresh.param_groups, strict=True):
                group.update({name: new[name] for name in ("ess", "beta2")})
        return train, valid

    def predict_proba(self, X: Any) -> np.ndarray[Any, Any]:
        """Class probabilities averaged over the posterior."""
        # skorch's scoring lends its predictions, for one reading.
        cached = "forward_iter" in vars(self)
        if cached or not self.samples:
            return np.asarray(super().predict_proba(X))
        posterior, total = self.optimizer_.posterior(self.module_), 0.0
        for index in range(self.samples):
            with posterior.sample(self.module_, index):
                total = total + super().predict_proba(X)
        return np.asarray(total / self.samples)
