"""The figures of the paper, and a few of our own: recipes, a drawing, claims and the verdict on them."""

from reproduce.figures import (
    comparing,
    demo,
    hessians,
    noisy_examples,
    ols_comparison,
    second_order,
    sigmoid_noise,
    strategies,
)
from reproduce.study import Study

# In the order in which `reproduce all` runs them: what the paper claims most about comes first.
STUDIES: dict[str, Study] = {
    study.name: study
    for study in (
        demo.STUDY,
        sigmoid_noise.STUDY,
        second_order.STUDY,
        comparing.DATA_DEPENDENT,
        comparing.CIFAR10_NOISY,
        noisy_examples.MNIST_NOISE,
        noisy_examples.ILLUSTRATION,
        ols_comparison.STUDY,
        comparing.CIFAR100_NOISY,
        comparing.NATURAL_NOISE,
        hessians.FIXED_COVARIANCE,
        hessians.HESSIAN_INIT,
        strategies.STUDY,
    )
}

__all__ = ["STUDIES", "Study"]
