"""How true classes turn into given labels, and what a prediction of given labels says of the true ones.

A model of the given labels predicts their errors too: where a fifth of the cats are called dogs, it expects "dog" of a
fifth of them. With the transition matrix T (rows are true classes), a prediction p of given labels comes from a
prediction q of true classes by p = qT. T is learned from the given labels alone, held against predictions that have
not seen them; then q follows from p, and the label itself is held against q.
"""

import torch
from torch import Tensor

CONFIDENT_SHARE = 0.3  # of the predictions of each class: T is learned from the most confident ones
PRIOR_ROWS = 5.0  # examples for which the average noise rate counts, beside those of a class
CONCENTRATIONS = torch.logspace(-1, 4, 26, dtype=torch.float32, device="cpu")
LABEL_POWER = 1 / 4  # of T in what the given label says of the true class
SMALLEST = 1e-9  # probability of a transition that was never seen
PROBABILITIES_AT_ONCE = 1 << 20


def rank_in_class(order: Tensor, classes: Tensor) -> Tensor:
    """The place of each example among those of its class, from 0, where all stand in this order.

    >>> rank_in_class(torch.tensor([3, 2, 1, 0]), torch.tensor([0, 0, 1, 0]))
    tensor([2, 1, 0, 0])
    """
    by_class = order[classes[order].argsort(stable=True)]
    counts = torch.bincount(classes)
    first = (counts.cumsum(0) - counts)[classes[by_class]]
    rank = torch.empty_like(order)
    rank[by_class] = torch.arange(len(order), device="cpu") - first
    return rank


def select_confident(best: Tensor, best_class: Tensor, share: float) -> Tensor:
    """Which predictions are among the most confident share of those of their class.

    >>> select_confident(torch.tensor([0.9, 0.8, 0.6, 0.5]), torch.tensor([0, 0, 1, 1]), 0.5)
    tensor([ True, False,  True, False])
    """
    rank = rank_in_class(best.argsort(descending=True, stable=True), best_class)
    return rank < (share * torch.bincount(best_class)).ceil()[best_class]


def learn_transitions(predicted: Tensor, labels: Tensor) -> Tensor:
    """T (K, K) from predictions (N, K) that have not seen the labels.

    The most confident predictions are taken for the true classes, each as far as it is ahead of the second best class:
    where even these are unsure, labels that differ may be the model's own errors. A class has its own noise rate,
    drawn to that of all classes. Where its wrong labels go is drawn to "anywhere", as much as makes the counts
    likeliest if every class draws its own from one Dirichlet distribution.

    >>> learn_transitions(torch.eye(2).repeat(50, 1), torch.arange(100) % 2)
    tensor([[1., 0.],
            [0., 1.]])
    """
    classes = predicted.shape[1]
    (best, second), (best_class, _) = (part.unbind(1) for part in predicted.topk(2, dim=1))
    sure = select_confident(best, best_class, CONFIDENT_SHARE)
    pair, lead = best_class[sure] * classes + labels[sure], (best - second)[sure]
    counts = torch.bincount(pair, lead, classes**2).reshape(classes, classes)
    wrong = counts.clone().fill_diagonal_(0)
    seen, slipped = counts.sum(1), wrong.sum(1)
    rate = (slipped + PRIOR_ROWS * slipped.sum() / seen.sum().clamp_min(1e-9)) / (seen + PRIOR_ROWS)
    even = _choose_concentration(wrong)
    where = (wrong + even / (classes - 1)) / (slipped + even)[:, None]
    return (rate[:, None] * where).fill_diagonal_(0) + torch.diag(1 - rate)


def _choose_concentration(wrong: Tensor) -> Tensor:
    """α under which counts from Dirichlet(α/(K − 1), …) in each row are likeliest; the diagonal is empty."""
    total, others = wrong.sum(1), len(wrong) - 1
    many = wrong[wrong > 0]  # zeros add nothing

    def likelihood(a: Tensor) -> Tensor:
        share = a / others
        rows = torch.lgamma(a) - torch.lgamma(a + total)
        return rows.sum() + (torch.lgamma(many + share) - torch.lgamma(share)).sum()

    return CONCENTRATIONS[torch.stack([likelihood(a) for a in CONCENTRATIONS]).argmax()]


def predict_true_classes(given: Tensor, transitions: Tensor) -> Tensor:
    """q (N, K), the true classes, where a prediction p of given labels and T are known.

    The true class behind a label y has P(k | y) = p_k T_ky / (pT)_y; averaged over the labels that p expects,
    q = p · (p/(pT))Tᵀ. (That is the first step of EM towards qT = p. More steps follow the errors of p: on real label
    errors they find fewer, on made ones more; docs/evidence-audit.md.)

    >>> predict_true_classes(torch.tensor([[0.8, 0.2]]), torch.tensor([[0.8, 0.2], [0.0, 1.0]]))
    tensor([[0.8889, 0.1111]])
    """
    tiny = torch.finfo(given.dtype).tiny
    found = torch.empty_like(given)
    size = max(PROBABILITIES_AT_ONCE // given.shape[1], 1)
    for p, q in zip(torch.split(given, size), torch.split(found, size), strict=True):
        q[:] = p * ((p / (p @ transitions).clamp_min(tiny)) @ transitions.mT)
        q /= q.sum(1, keepdim=True).clamp_min(tiny)
    return found


def weigh_by_label(true: Tensor, transitions: Tensor, labels: Tensor) -> Tensor:
    """r (N, K) ∝ q_k T_ky^¼: the given label y is evidence of the true class too.

    With the whole T_ky it would be Bayes' rule, and wrong labels that T makes likely would lose all their weight; T is
    learned, and a quarter of it finds the most (docs/evidence-audit.md).
    """
    weights = transitions.clamp_min(SMALLEST) ** LABEL_POWER
    found = true * weights.mT[labels]
    return found / found.sum(1, keepdim=True).clamp_min(torch.finfo(true.dtype).tiny)


def probability_wrong(true: Tensor, transitions: Tensor, labels: Tensor) -> Tensor:
    """1 − q_y T_yy / (qT)_y (N,): that the label is wrong, by Bayes' rule from a q that has not seen it."""
    own = true.gather(1, labels[:, None]).squeeze(1) * transitions.diagonal()[labels]
    return 1 - own / (true * transitions.mT[labels]).sum(1).clamp_min(torch.finfo(true.dtype).tiny)
