"""scikit-learn estimators: a network trained with IVON, and any classifier trained on audited labels.

Both work in `Pipeline`, `cross_val_score` and `GridSearchCV`, and pass `check_estimator`.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from bayesmooth.audit import Audit, audit, audit_probabilities
from bayesmooth.calling import evaluating, take_logits
from bayesmooth.errors import InputError, one_of, require
from bayesmooth.fitting.choose import IVON_GRID, fit
from bayesmooth.fitting.linear import fit_linear
from bayesmooth.labelnoise import LabelNoise, label_noise
from bayesmooth.models import mlp, weights_from
from bayesmooth.optim.schedule import ENOUGH

base = require("sklearn.base", "data")
validation = require("sklearn.utils.validation", "data")

AT_ONCE = 4096  # rows of a prediction
RATE, NOISE = 0.03, 1.0  # of one run without a choice
STEPS, SMALLEST = 16, 8  # per epoch at least, where batches are not smaller than this
FEW = 200  # rows: fewer leave too few labels to choose by
HELD_BACK = 0.2  # of the rows, to choose by
CHOICES = {"mode": ("drop", "weight", "relabel"), "by": ("features", "predictions")}

Array = np.ndarray[Any, Any]
Module = nn.Module | Callable[[int, int], nn.Module] | None


class _Classifier(base.ClassifierMixin, base.BaseEstimator):  # type: ignore[misc, name-defined]
    """The part of both estimators: checked inputs, labels as numbers, the most probable class of `predict_proba`."""

    classes_: Array

    def predict(self, X: Any) -> Array:
        """The most probable class of each row."""
        best = self.predict_proba(X).argmax(1)  # first, as it knows whether there was a fit
        return np.asarray(self.classes_[best])

    def _begin(self, X: Any, y: Any) -> tuple[Array, Tensor]:
        """Finite rows, and labels as positions in `classes_`, which this sets."""
        X, y = validation.validate_data(self, X, y, dtype=np.float64)
        require("sklearn.utils.multiclass", "data").check_classification_targets(y)
        self.classes_ = np.unique(y)
        if len(self.classes_) < 2:
            raise InputError(f"y has only one class, {self.classes_[0]}: must be two at least")
        return X, self._numbers(y)

    def _rows(self, X: Any) -> Array:
        """Finite rows with the features of the fit."""
        validation.check_is_fitted(self)
        return np.asarray(validation.validate_data(self, X, dtype=np.float64, reset=False))

    def _numbers(self, y: Any) -> Tensor:
        """Labels as positions in `classes_`."""
        y = validation.column_or_1d(y)
        unknown = ~np.isin(y, self.classes_)
        if unknown.any():
            classes = ", ".join(map(repr, self.classes_.tolist()))
            raise InputError(f"label {y[unknown].tolist()[0]!r}: must be one of {classes}")
        return torch.from_numpy(np.searchsorted(self.classes_, y))


class IVONClassifier(_Classifier):
    """A network trained with IVON, whose noise and step the data choose.

    `bayesmooth.fit` tries six pairs of lr and noise, and a held-back fifth of the given labels chooses: three times the
    cost of one run. Fewer than 200 rows are too few to choose by: there is one run. A linear model competes with the
    default network, if the held-back labels are a hundred or more, and wins where features are many. Features are
    standardised by their statistics in training.

    Arguments:
        module: a network that takes (rows, features) and gives logits, or a function (features, classes) that makes
            one; None makes a multi-layer perceptron, and lets a linear model compete with it.
        hidden: the widths of its layers.
        lr, noise: as in `bayesmooth.IVON`, relative to the weights. None lets the held-back labels choose. If one of
            them is given, there is one run, with lr 0.03 or noise 1.0 for the other.
        epochs, batch_size: the length of the training, and rows per step; fewer, where an epoch would have few steps.
        samples: draws of the posterior that a prediction averages; 0 predicts at its mean, which held-out labels chose.
        random_state: of the weights, the noise and the order of the rows.

    Attributes:
        classes_, n_features_in_: as in scikit-learn.
        module_, posterior_: the network and the Gaussian over its weights.
        table_: all trials: lr, noise or the linear model's prior, share of the epochs, held-out accuracy and NLL (None
            where no labels are held out).
        location_, scale_: of the features.

    >>> model = IVONClassifier(random_state=0, epochs=20)
    >>> model.fit([[-2.0], [-1.0], [1.0], [2.0]], ["no", "no", "yes", "yes"]).predict([[3.0]])
    array(['yes'], dtype='<U3')
    """

    def __init__(
        self,
        module: Module = None,
        *,
        hidden: Sequence[int] = (100,),
        lr: float | None = None,
        noise: float | None = None,
        epochs: int = 50,
        batch_size: int = 50,
        samples: int = 0,
        random_state: Any = None,
    ) -> None:
        self.module = module
        self.hidden = hidden
        self.lr = lr
        self.noise = noise
        self.epochs = epochs
        self.batch_size = batch_size
        self.samples = samples
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> Self:
        """Train from scratch."""
        X, numbers = self._begin(X, y)
        state = require("sklearn.utils", "data").check_random_state(self.random_state)
        self._seed, scale = int(state.randint(2**31)), X.std(0)
        self.location_, self.scale_ = X.mean(0), np.where(scale > 0, scale, 1.0)
        inputs, few = self._inputs(X), len(X) < FEW
        order = torch.Generator("cpu").manual_seed(self._seed)
        held = torch.rand(len(X), generator=order, dtype=torch.float32, device="cpu") < HELD_BACK
        one = few or self.lr is not None or self.noise is not None
        setting = {"lr": RATE if self.lr is None else self.lr, "noise": NOISE if self.noise is None else self.noise}
        with torch.device("cpu"):
            result = fit(
                lambda: self._make(X.shape[1], len(self.classes_)),
                (inputs, numbers),
                self.epochs,
                batch_size=min(self.batch_size, max(len(X) // STEPS, SMALLEST)),
                validation=(inputs, numbers) if few else None,
                held_back=held.nonzero()[:, 0].tolist(),
                grid=[setting] if one else IVON_GRID,
                seed=self._seed,
                quiet=True,
            )
            assert result.posterior is not None
            self.module_, self.posterior_, self.table_ = result.model, result.posterior, result.table
            if few:  # these were measured on what it learned
                self.table_ = [row | {"accuracy": None, "nll": None} for row in result.table]
            if self.module is None and not one and int(held.sum()) >= ENOUGH:
                line = fit_linear(inputs, numbers, held, len(self.classes_))
                measured = {"trained": 1.0, "accuracy": line.accuracy, "nll": line.nll}
                self.table_.append({"precision": line.precision, "labels": "given", **measured})
                if line.is_level_with(result.accuracy):  # to a standard error
                    self.module_, self.posterior_ = line.model, line.posterior
        return self

    def predict_proba(self, X: Any) -> Array:
        """softmax(f) at the mean, or its average over `samples` draws; one column per class of `classes_`."""
        inputs = self._inputs(self._rows(X)).double()
        # One row alone must give the same as among others.
        module = copy.deepcopy(self.module_).double()
        batches = torch.split(inputs, AT_ONCE)
        if self.samples:
            return self.posterior_.predict(module, batches, self.samples).numpy()
        with torch.no_grad(), evaluating(module):
            return torch.cat([take_logits(module(b)).softmax(-1) for b in batches]).numpy()

    def label_noise(self, X: Any, y: Any = None, **options: Any) -> LabelNoise:
        """ε of every row  (eq:labelnoiseGLMGD); the options are those of `bayesmooth.label_noise`."""
        inputs = self._inputs(self._rows(X))
        data = inputs if y is None else [(inputs, self._numbers(y))]
        return label_noise(self.module_, self.posterior_, data, **options)

    def _make(self, features: int, classes: int) -> nn.Module:
        if isinstance(self.module, nn.Module):
            return copy.deepcopy(self.module)
        if self.module is not None:
            with weights_from(self._seed):
                return self.module(features, classes)
        return mlp(classes, input_shape=(features,), hidden=tuple(self.hidden), seed=self._seed)

    def _inputs(self, X: Array) -> Tensor:
        return torch.from_numpy((X - self.location_) / self.scale_).float()


class CleanedClassifier(_Classifier):
    """Any classifier, trained on labels that were audited first.

    The audit looks at the features, none of which votes for its own label, and learns the transitions from true classes
    to given ones (`bayesmooth.audit`). Then the estimator is fitted once, by the mode:

    - `mode="drop"`: without the worst labels, as many as the audit estimates to be wrong,
    - `mode="weight"`: with each example weighted by the probability that its label is right,
    - `mode="relabel"`: with the suggested label in place of the worst ones.

    Arguments:
        estimator: any classifier, also a pipeline. Not touched: a clone is fitted.
        mode: as above.
        by: 'features' audits the features, which must be numbers; 'predictions' audits the estimator's predictions of
            held-out folds, for inputs of any type.
        folds: of those predictions.
        random_state: of the folds.

    Attributes:
        classes_, n_features_in_: as in scikit-learn.
        estimator_: the fitted clone.
        audit_: the `Audit`, with its report.
        weights_: the weight of each label in the fit: 0 if it was dropped.

    >>> from sklearn.neighbors import KNeighborsClassifier
    >>> x, y = [[i / 10 + 9 * (i >= 20)] for i in range(40)], [int(i >= 20) for i in range(40)]
    >>> y[2] = 1
    >>> CleanedClassifier(KNeighborsClassifier(1)).fit(x, y).predict([[0.2]])
    array([0])
    """

    def __init__(
        self,
        estimator: Any = None,
        *,
        mode: str = "drop",
        by: str = "features",
        folds: int = 5,
        random_state: Any = None,
    ) -> None:
        self.estimator = estimator
        self.mode = mode
        self.by = by
        self.folds = folds
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> Self:
        """Audit the labels, then fit the estimator as `mode` says."""
        for name, choices in CHOICES.items():
            one_of(name, getattr(self, name), choices)
        if self.by == "features":
            try:
                inputs, numbers = self._begin(X, y)
            except ValueError as problem:
                if not (text := str(problem).partition("could not convert string to float: ")[2]):
                    raise
                way_out = "audit what the estimator predicts, with by='predictions'"
                raise InputError(f"X holds texts ({text[:40]}): features must be numbers; {way_out}") from None
        else:
            self.classes_ = np.unique(validation.column_or_1d(y))
            inputs, numbers = X, self._numbers(y)
        labels = numbers.numpy()
        default = require("sklearn.linear_model", "data").LogisticRegression(max_iter=1000)
        estimator = base.clone(default if self.estimator is None else self.estimator)
        self.audit_ = self._audit(estimator, inputs, labels)
        seen = np.array(self.audit_.ids, np.int64)  # without classes of one example: these labels stay as they are
        top = self.audit_.order[: round((self.audit_.summary["dropped_in_training"] or 0.0) * len(labels))]  # the worst
        top = top[self.audit_.contradicted[top]]
        given, worst, options = labels.copy(), seen[top], {}
        self.weights_: Array = np.ones(len(labels))
        if self.mode == "weight":
            self.weights_[seen] = self.audit_.weights()
            options = _route_weights(estimator, self.weights_)
        elif self.mode == "relabel":
            given[worst] = self.audit_.suggested[top]
        elif len(np.unique(np.delete(labels, worst))) == len(self.classes_):  # a class is never lost
            self.weights_[worst] = 0.0
            kept = np.flatnonzero(self.weights_)
            take = require("sklearn.utils", "data")._safe_indexing  # of any container of rows
            inputs, given = take(inputs, kept), given[kept]
        self.estimator_ = estimator.fit(inputs, self.classes_[given], **options)
        return self

    def predict(self, X: Any) -> Array:
        """The predictions of the estimator."""
        rows = self._seen(X)  # first, as it knows whether there was a fit
        return np.asarray(self.estimator_.predict(rows))

    def predict_proba(self, X: Any) -> Array:
        """The estimator's probabilities, one column per class of `classes_`."""
        rows = self._seen(X)
        result = np.zeros((validation._num_samples(rows), len(self.classes_)))
        result[:, np.searchsorted(self.classes_, self.estimator_.classes_)] = self.estimator_.predict_proba(rows)
        return result  # relabelling may have left the estimator no example of a class

    def _seen(self, X: Any) -> Any:
        validation.check_is_fitted(self)
        return self._rows(X) if self.by == "features" else X

    def _audit(self, estimator: Any, X: Any, labels: Array) -> Audit:
        names = [str(name) for name in self.classes_]
        if self.by == "features":
            rows = require("sklearn.preprocessing", "data").StandardScaler().fit_transform(X)
            return audit(rows, labels, class_names=names, quiet=True)
        selection = require("sklearn.model_selection", "data")
        folds = selection.StratifiedKFold(self.folds, shuffle=True, random_state=self.random_state)
        rows = selection.cross_val_predict(estimator, X, labels, cv=folds, method="predict_proba")
        return audit_probabilities(rows, labels, class_names=names, quiet=True)


def _route_weights(estimator: Any, weights: Array) -> dict[str, Array]:
    """The weights as an argument of `fit`: of the last step, where the estimator is a pipeline."""
    last = getattr(estimator, "steps", [("", estimator)])[-1]
    if not validation.has_fit_parameter(last[1], "sample_weight"):
        raise InputError(f"{type(last[1]).__name__} takes no sample_weight; use mode='drop' or mode='relabel'")
    return {f"{last[0]}__sample_weight" if last[0] else "sample_weight": weights}
