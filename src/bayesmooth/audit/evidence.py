"""What a source tells the audit about every example: all that the scores may look at.

Embeddings have two witnesses. A Bayesian softmax regression says what its posterior predicts on average, p̄, and
with which label noise ε. The nearest neighbours vote, none for itself. The evidence is p = w·p̄ + (1 − w)·p_knn, with
the w under which the given labels, each left out, are likeliest: no clean label is needed. That predicts the given
label; how true classes turn into given ones is learned too and taken back (`transitions`). The witnesses learn from a
sample of at most `SAMPLE` rows and are then asked about all rows piece by piece, here or on a cluster, so the data
need not fit in memory.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from math import log, pi
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from bayesmooth.audit.neighbours import Keys, unit_rows, without_self
from bayesmooth.audit.settings import Settings
from bayesmooth.audit.transitions import learn_transitions, predict_true_classes
from bayesmooth.data import Examples
from bayesmooth.errors import InputError
from bayesmooth.labelnoise import LabelNoise, label_noise
from bayesmooth.optional import require
from bayesmooth.posterior import Posterior
from bayesmooth.progress import bar, track
from bayesmooth.theory.glm import GLMFit, fit_glm
from bayesmooth.theory.moments import likely_softmax_mean

FEWEST = 2  # examples of a class: with one, its only witness is itself
SAMPLE = 100_000  # rows that the witnesses learn from: more hardly change them
STATISTICS = 2_000  # examples from which batch-norm statistics are computed
RARE = 100  # rows of every class that are in the sample, if it has so many
PIECE = 1 << 13  # rows at a time
FEWEST_DIMS, MAX_DIMS = 128, 384  # principal components
WORK = 1.2e8  # examples × classes × components from which on fewer of these are kept
LARGEST = 1e15  # number in an embedding: squares of larger ones overflow
NEGLIGIBLE = 1e-6  # of the largest variance: less is lost in products of float32
QR_STEPS = 100
TOLERANCE = 0.1  # posterior standard deviations: finer steps do not change the ranking
DRAWS = 8  # of every example's logits, while fitting
LIKELY = 8  # classes of an example over which its noise is integrated one by one
NEIGHBOURS = 50
EXACT_ROWS = 5_000  # up to which all pairs of rows are compared: a vote does not miss the twentieth that cells do
TEMPERATURES = (0.05, 0.1, 0.3)  # of the vote: the lower, the more the nearest count
BACKGROUND = 0.02  # of every vote is spread evenly, so that no class has probability 0
TUNED = 1_000  # rows on which the witnesses are weighed


NOWHERE = torch.empty(0, 0, dtype=torch.int64), torch.empty(0, 0)  # neighbours that are not kept


class Blind(NamedTuple):
    """What is predicted of each example without its own label: of its label's class, the best and the second best."""

    own: Tensor
    best: Tensor
    second: Tensor
    best_class: Tensor

    @classmethod
    def of(cls, probabilities: Tensor, labels: Tensor) -> "Blind":
        """From probabilities (N, K) that do not know the labels."""
        top = probabilities.topk(2, dim=1)
        own = probabilities.gather(1, labels[:, None]).squeeze(1)
        return cls(own, top.values[:, 0], top.values[:, 1], top.indices[:, 0])


@dataclass(frozen=True, eq=False)
class Evidence:
    """Labels, averaged probabilities (N, K), and the noise where there is a posterior to have one."""

    labels: Tensor
    probabilities: Tensor
    """What the witnesses predict together of the true class; with the example left out where `method` says so."""
    noise: Tensor | None
    """Signed ε (N, K) of the posterior; None where probabilities are all there is."""
    method: str
    facts: Mapping[str, object] = field(default_factory=dict)
    """Figures for the summary."""
    index: Tensor | None = None
    """Positions in the data, where they are not 0 … N−1."""
    left_out: Blind | None = None
    """The prediction with every example left out; None where `probabilities` are that already."""
    neighbours: tuple[Tensor, Tensor] | None = None
    """Positions and similarities of every example's nearest ones, where all were compared."""

    @property
    def blind(self) -> Blind:
        """The prediction that has not seen the example's label."""
        return self.left_out or Blind.of(self.probabilities, self.labels)

    def signed_noise(self) -> Tensor:
        """ε, or an error that says what it takes."""
        if self.noise is None:
            raise InputError(
                "score='noise_of_label' needs a posterior; with probabilities alone use 'root_margin'"
            )
        return self.noise


# ---- checks


def check_labels(labels: Tensor, class_names: tuple[str, ...]) -> None:
    """Refuse labels from which nothing can be learned about themselves."""
    if len(class_names) < 2:
        raise InputError(
            f"{len(class_names)} class: an audit needs two at least, or every label is right"
        )
    counts = torch.bincount(labels, minlength=len(class_names))
    few = ((counts > 0) & (counts < FEWEST)).nonzero().flatten().tolist()
    if few:
        raise InputError(
            f"class {class_names[few[0]]!r} has {int(counts[few[0]])} example: must be {FEWEST} at "
            "least, as the others are what contradicts a label; merge the class or leave it out"
        )
    if int((counts > 0).sum()) < 2:
        raise InputError(
            f"all {len(labels)} labels are {class_names[int(counts.argmax())]!r}: an audit needs "
            "two classes at least"
        )


def check_probabilities(probabilities: Tensor, count: int, classes: int) -> Tensor:
    """Rows of probabilities as float32 that sum to one."""
    if probabilities.shape != (count, classes):
        raise InputError(
            f"probabilities of shape {tuple(probabilities.shape)}: must be {count} × {classes}, "
            "one row per example and one column per class"
        )
    values = probabilities.float()
    sums = values.sum(1)
    broken = (~values.isfinite() | (values < 0)).any(1) | ((sums - 1).abs() > 0.01)
    if broken.any():
        row = int(broken.nonzero()[0])
        shown = [round(float(p), 4) for p in values[row, :5]]
        raise InputError(
            f"probabilities[{row}] = {shown}…: must be ≥ 0 and sum to one; pass logits.softmax(-1)"
        )
    return values / sums[:, None]


# ---- embeddings


class Projection(NamedTuple):
    """Centred, turned to principal components, scaled to unit mean square norm, and a column of ones.

    The prior is isotropic, so turning changes nothing but what is cut off; and a diagonal covariance keeps what
    matters, as principal components are nearly uncorrelated in every class.
    """

    mean: Tensor
    axes: Tensor

    @classmethod
    def of(cls, rows: Tensor, name: str = "embeddings", max_dims: int = MAX_DIMS) -> "Projection":
        """The projection that suits these rows.

        An axis is kept where the rows spread along it by more than float32 can tell from rounding.
        """
        low, high = rows.amin(0), rows.amax(0)
        varies = high > low
        if not bool(varies.any()):
            raise InputError(f"{name}: all embeddings are the same; nothing to learn from")
        mean, columns = rows.mean(0), int(varies.sum())
        # Scaled first, so that no square is lost below float32's smallest number.
        scale = (high - low).max()
        gram = torch.zeros(columns, columns, dtype=torch.float64, device="cpu")
        for piece in torch.split(rows, PIECE):
            moved = (piece - mean)[:, varies] / scale
            gram += (moved.mT @ moved).double()
        power, turned = decompose(gram / len(rows))
        rounding = torch.finfo(torch.float32).eps * float(rows.abs().max() / scale)
        least = max(NEGLIGIBLE * float(power[-1]), columns * rounding**2)
        useful = int((power > least).sum())
        kept = turned[:, -min(max_dims, max(useful, 1)) :].flip(1)
        total = float(power.clamp_min(0).sum()) ** 0.5
        axes = rows.new_zeros(rows.shape[1], kept.shape[1])
        axes[varies] = (kept / (total * float(scale))).to(axes.dtype)
        return cls(mean, axes)

    def features(self, rows: Tensor) -> Tensor:
        """What the regression sees of these rows."""
        return torch.cat([(rows - self.mean) @ self.axes, rows.new_ones(len(rows), 1)], 1)


def decompose(gram: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues, ascending, and eigenvectors of a symmetric matrix that has none below zero.

    LAPACK's iteration may fail to converge: torch's does in float32 where many columns are nearly constant, on some
    processors. Repeated QR decompositions Q ← qr(GQ) have nothing that can fail; they take longer.
    """
    try:
        return tuple(map(torch.from_numpy, np.linalg.eigh(gram.numpy())))  # type: ignore[return-value]
    except np.linalg.LinAlgError:
        turned = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
        for _ in range(QR_STEPS):
            turned = torch.linalg.qr(gram @ turned).Q
        power, order = (turned * (gram @ turned)).sum(0).sort()
        return power, turned[:, order]


class Statement(NamedTuple):
    """What the witnesses say of some rows: of their given labels, with these seen and without."""

    probabilities: Tensor
    noise: Tensor
    without: Tensor
    neighbours: tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Witnesses:
    """The posterior of a softmax regression and the neighbours, and how much each of them counts."""

    projection: Projection
    fit: GLMFit
    keys: Keys
    key_labels: Tensor
    temperature: float = TEMPERATURES[0]
    weight: float = 1.0
    """w, of the posterior; the neighbours have 1 − w."""

    @classmethod
    def of(cls, rows: Tensor, labels: Tensor, examples: Examples, quiet: bool) -> "Witnesses":
        """Those who know these rows, weighed on some of them."""
        affordable = int(WORK / (len(rows) * examples.num_classes))
        dims = min(max(affordable, FEWEST_DIMS), MAX_DIMS)
        projection = Projection.of(rows, examples.name, dims)
        fit = fit_softmax(projection.features(rows), labels, examples.num_classes, quiet=quiet)
        keys = Keys(unit_rows(examples.name, rows), exact=len(rows) <= EXACT_ROWS)
        witnesses = cls(projection, fit, keys, labels)
        some = torch.linspace(0, len(rows) - 1, min(TUNED, len(rows))).long()
        return witnesses.weighed(rows[some], labels[some], some)

    def testify(
        self, rows: Tensor, labels: Tensor, own: Tensor, held: Tensor | None, left_out: bool
    ) -> Statement:
        """Of rows whose positions among the keys are `own`, −1 where they are none of them.

        The posterior has seen the labels; `left_out` takes their pull back, `held` are predictions to use instead.
        """
        averaged, noise, without = self._posterior(rows, labels)
        found = self._neighbours(rows, own)
        votes = self._votes(found, self.temperature)
        without = torch.lerp(votes, without, self.weight)
        if left_out:
            return Statement(without, noise, without, found)
        seen = torch.lerp(votes, averaged if held is None else held, self.weight)
        return Statement(seen, noise, without, found)

    def weighed(self, rows: Tensor, labels: Tensor, own: Tensor) -> "Witnesses":
        """With the temperature and the w under which these labels, each left out, are likeliest.

        Half of the way to that w from equal weights: the likelihood of labels that are partly wrong judges
        calibration more than ranking, and a witness who is not heard at all cannot help (docs/audit.md).
        """
        given, weights = labels[:, None], torch.linspace(0, 1, 41)
        posterior = self._posterior(rows, labels)[2].gather(1, given)
        found, tried = self._neighbours(rows, own), []
        for temperature in TEMPERATURES:
            votes = self._votes(found, temperature).gather(1, given)
            likelihood = torch.lerp(votes, posterior, weights).log().mean(0)
            best = int(likelihood.argmax())
            tried.append((float(likelihood[best]), temperature, float(weights[best])))
        _, temperature, weight = max(tried)
        return replace(self, temperature=temperature, weight=(weight + 0.5) / 2)

    def _posterior(self, rows: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The averaged prediction, its noise ε, and the prediction with each example left out."""
        mean, var = self.fit.logits(self.projection.features(rows))
        averaged = likely_softmax_mean(mean, var, LIKELY)
        without = blunted_softmax(*leave_one_out(mean, var, averaged, labels))
        return averaged, mean.softmax(-1) - averaged, without

    def _neighbours(self, rows: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
        count = min(NEIGHBOURS, len(self.key_labels) - 1)
        found = self.keys.search(unit_rows("embeddings", rows), count + 1, quiet=True)
        return without_self(*found, own)

    def _votes(self, found: tuple[Tensor, Tensor], temperature: float) -> Tensor:
        """The neighbours' votes (N, K)."""
        index, similarity = found
        classes = self.fit.theta.shape[1]
        share = torch.softmax(similarity / temperature, 1) * (1 - BACKGROUND)
        even = torch.full((len(index), classes), BACKGROUND / classes)
        return even.scatter_add_(1, self.key_labels[index], share)


def audit_embeddings(
    examples: Examples,
    settings: Settings,
) -> Evidence:
    """Evidence from one fit (`none` or `loo`), or with probabilities from `folds` more."""
    out_of_sample, folds, seed = settings.out_of_sample, settings.folds, settings.seed
    quiet = settings.quiet
    labels, everything = examples.labels, torch.arange(len(examples))
    chosen = sample(labels, seed)
    rows = torch.cat([rows for _, rows in _pieces(examples, chosen, "reading", quiet)])
    witnesses = Witnesses.of(rows, labels[chosen], examples, quiet)
    held = None
    if out_of_sample == "folds":
        if len(chosen) < len(labels):
            raise InputError(f"folds: at most {SAMPLE:,} examples; use 'loo', which needs no refit")
        features = witnesses.projection.features(rows)
        held = cross_fit(features, labels, examples.num_classes, folds, seed=seed, quiet=quiet)
    own = torch.full_like(labels, -1)
    own[chosen] = torch.arange(len(chosen))
    ask = partial(_ask, witnesses, out_of_sample == "loo")
    pieces = (
        (rows, labels[at], own[at], None if held is None else held[at])
        for at, rows in _pieces(examples, everything, "scoring", quiet)
    )
    whole = len(chosen) == len(labels)
    said = [
        one if whole else one._replace(neighbours=NOWHERE)
        for one in each(ask, pieces, settings.cluster)
    ]
    without = torch.cat([one.without for one in said])
    transitions = learn_transitions(without, labels)
    blind = shown = predict_true_classes(without, transitions, quiet=quiet)
    if out_of_sample != "loo":
        seen = torch.cat([one.probabilities for one in said])
        shown = predict_true_classes(seen, transitions, quiet=quiet)
    ways = {"loo": "leave-one-out", "folds": f"{folds}-fold cross-fit", "none": "in-sample"}
    count = min(NEIGHBOURS, len(chosen) - 1)
    return Evidence(
        labels,
        shown,
        torch.cat([one.noise for one in said]),
        f"variational softmax regression and {count} neighbours, {ways[out_of_sample]}",
        {
            "components": witnesses.projection.axes.shape[1],
            "fitted_to": len(chosen),
            "prior_precision": witnesses.fit.prior_precision,
            "fit": witnesses.fit.message,
            "weight_of_posterior": round(witnesses.weight, 3),
            "weight_of_neighbours": round(1 - witnesses.weight, 3),
        },
        left_out=Blind.of(blind, labels),
        neighbours=_joined(one.neighbours for one in said) if whole else None,
    )


def _joined(parts: Iterable[tuple[Tensor, ...]]) -> Any:
    return tuple(torch.cat(column) for column in zip(*parts, strict=True))


Piece = tuple[Tensor, Tensor, Tensor, Tensor | None]


def _ask(witnesses: Witnesses, left_out: bool, piece: Piece) -> Statement:
    return witnesses.testify(*piece, left_out=left_out)


def each(
    ask: Callable[[Piece], Statement], pieces: Iterable[Piece], cluster: str | None
) -> Iterator[Statement]:
    """What `ask` says of every piece, in order; with "ray" as tasks of a Ray cluster, some at a time."""
    if cluster is None:
        yield from map(ask, pieces)
        return
    ray = require("ray", extra="cluster")
    if not ray.is_initialized():
        ray.init(log_to_driver=False, logging_level="error")
    task, shared = ray.remote(_apply), ray.put(ask)
    limit = 2 * int(ray.cluster_resources().get("CPU", 1))
    waiting: deque[Any] = deque()
    for piece in pieces:
        if len(waiting) >= limit:
            yield ray.get(waiting.popleft())
        waiting.append(task.remote(shared, piece))
    while waiting:
        yield ray.get(waiting.popleft())


def _apply(ask: Callable[[Piece], Statement], piece: Piece) -> Statement:
    return ask(piece)


def sample(labels: Tensor, seed: int = 0) -> Tensor:
    """Positions of all examples, or of `SAMPLE` at random and at least `RARE` of every class, in order."""
    if len(labels) <= SAMPLE:
        return torch.arange(len(labels))
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    by_class = labels[order].argsort(stable=True)
    counts = torch.bincount(labels)
    starts = (counts.cumsum(0) - counts)[labels[order][by_class]]
    rank = torch.empty_like(order)
    rank[by_class] = torch.arange(len(labels)) - starts  # of each among its class, at random
    chosen = (torch.arange(len(labels)) < SAMPLE) | (rank < RARE)
    return order[chosen].sort().values


def _pieces(
    examples: Examples, index: Tensor, description: str, quiet: bool
) -> Iterator[tuple[Tensor, Tensor]]:
    """Positions and rows, piece by piece, checked."""
    parts = index.split(PIECE)  # type: ignore[no-untyped-call]
    for at in track(parts, description=description, quiet=quiet or len(parts) < 2):
        rows = examples.batch(at).flatten(1)
        broken = ~(rows.abs() <= LARGEST).all(1)
        if broken.any():
            row = int(at[int(broken.nonzero()[0])])
            raise InputError(
                f"{examples.name}: row {row} has entries that are NaN, infinite or beyond ±{LARGEST:.0e}; "
                "must be ordinary numbers: drop such rows, or scale the embeddings"
            )
        yield at, rows


def fit_softmax(features: Tensor, labels: Tensor, classes: int, *, quiet: bool) -> GLMFit:
    """VON with a diagonal covariance, its prior precision chosen by the ELBO."""
    steps = 0
    with bar(100, description="fitting", quiet=quiet) as shown:

        def on_step(excess: float) -> None:
            nonlocal steps
            steps += 1
            left = 1 + 2 * log(max(excess, 1.0))  # steps shrink about so fast
            shown.update(int(100 * steps / (steps + left)))

        return fit_glm(
            features,
            labels,
            classes=classes,
            covariance="diagonal",
            prior_precision="elbo",
            bias=False,
            draws=DRAWS,
            tol=TOLERANCE,
            dtype=torch.float32,
            on_step=on_step,
        )


def cross_fit(
    features: Tensor, labels: Tensor, classes: int, folds: int, *, seed: int, quiet: bool
) -> Tensor:
    """Averaged probabilities of every example from the fit to the folds it is not in."""
    member = stratified_folds(labels, folds, seed)
    out = features.new_empty(len(features), classes)
    for fold in track(range(folds), description="cross-fit", quiet=quiet):
        held = member == fold
        fit = fit_softmax(features[~held], labels[~held], classes, quiet=True)
        out[held] = likely_softmax_mean(*fit.logits(features[held]), LIKELY)
    return out


def stratified_folds(labels: Tensor, folds: int, seed: int) -> Tensor:
    """A fold for each example, the examples of a class spread evenly over them."""
    if folds > len(labels):
        raise InputError(f"folds={folds}: must be at most the number of examples, {len(labels)}")
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    by_class = order[labels[order].argsort(stable=True)]
    member = torch.empty_like(labels)
    member[by_class] = torch.arange(len(labels)) % folds
    return member


# ---- a network with a posterior over its weights


def as_posterior(source: Any, model: nn.Module) -> Posterior:
    """A posterior as it is, or that of an optimizer that has one (IVON, bSAM)."""
    if isinstance(source, Posterior):
        return source
    make = getattr(source, "posterior", None)
    if not callable(make):
        raise InputError(
            f"{type(source).__name__} has no posterior: give a Posterior, or an optimizer that "
            "learns one (IVON, BSAM)"
        )
    made = make(model)
    assert isinstance(made, Posterior)
    return made


def _for_statistics(model: nn.Module, data: Any, batch_size: int) -> list[Tensor] | None:
    """Inputs for batch-norm statistics, where there are such layers and the data gives its rows by position."""
    norms = any(isinstance(part, _BatchNorm) for part in model.modules())
    if not norms or not isinstance(data, Examples):
        return None
    device = next(model.parameters()).device
    some = torch.arange(min(len(data), STATISTICS))
    return [data.batch(part).to(device) for part in some.split(batch_size)]  # type: ignore[no-untyped-call]


def audit_network(
    model: nn.Module,
    posterior: Posterior,
    data: Any,
    settings: Settings,
) -> Evidence:
    """Evidence from posterior samples; `loo` takes each example's pull on the network back.

    The examples are those that the network was trained on, so each draw computes its batch-norm statistics from them.
    """
    noise = label_noise(
        model,
        posterior,
        data,
        samples=settings.samples,
        seed=settings.seed,
        batch_size=settings.batch_size,
        batchnorm=_for_statistics(model, data, settings.batch_size),
        quiet=settings.quiet,
    )
    labels = _labels(noise)
    left = leave_one_out(noise.logits, noise.logit_variance, noise.averaged, labels)
    without = blunted_softmax(*left)
    way = {"loo": "leave-one-out", "none": "in-sample"}[settings.out_of_sample]
    return Evidence(
        labels,
        without if settings.out_of_sample == "loo" else noise.averaged,
        noise.expected,
        f"{type(model).__name__}, {settings.samples} posterior samples, {way}",
        index=noise.index,
        left_out=Blind.of(without, labels),
    )


def _labels(noise: LabelNoise) -> Tensor:
    if noise.label is None:
        raise InputError("the data has no labels to audit; give batches (inputs, labels)")
    classes = noise.logits.shape[1]
    bad = ((noise.label < 0) | (noise.label >= classes)).nonzero().flatten()
    if len(bad):
        at = int(bad[0])
        raise InputError(
            f"label {int(noise.label[at])} of example {int(noise.index[at])}: must be from 0 to "
            f"{classes - 1}, the model's classes"
        )
    return noise.label


# ---- leave-one-out without refitting


class LeftOut(NamedTuple):
    """The logits of each example with that example removed, N(logits, var)."""

    logits: Tensor
    var: Tensor


def leave_one_out(logits: Tensor, var: Tensor, averaged: Tensor, labels: Tensor) -> LeftOut:
    """What the posterior would predict of each example without it, from the one fit.

    Removing example i takes its pull on the mean back (memory perturbation, Nickl et al. 2023). In the space of its own
    logits, with the curvature h = p(1 − p) and p the averaged prediction, that is

        f₋ᵢ = fᵢ + V₋ᵢ (pᵢ − yᵢ),    V₋ᵢ = Vᵢ / (1 + Vᵢhᵢ),    V = (1 − 1/K) Var f.

    Of K logits only K − 1 are free, and a fit that holds them independent moves K/(K − 1) times too far. A diagonal
    covariance leaves out that parameters move together: its Vh exceeds 1, as no leverage can, and Vh / (1 + Vh) does
    not. Labels held out of the fit are as likely as labels left out so, within two tenths of a nat.

    >>> leave_one_out(torch.zeros(1, 2), torch.ones(1, 2), torch.full((1, 2), 0.5), torch.tensor([0]))
    LeftOut(logits=tensor([[-0.2222,  0.2222]]), var=tensor([[0.4444, 0.4444]]))
    """
    pull = averaged.scatter_add(1, labels[:, None], -torch.ones_like(averaged[:, :1]))
    free = (1 - 1 / logits.shape[1]) * var
    left = free / (1 + free * averaged * (1 - averaged))
    return LeftOut(logits + left * pull, left)


def blunted_softmax(mean: Tensor, var: Tensor) -> Tensor:
    """E[softmax(f)], f ~ N(mean, var), roughly: every logit over √(1 + πv/8), as for one probit."""
    return torch.softmax(mean / (1 + pi / 8 * var).sqrt(), -1)
