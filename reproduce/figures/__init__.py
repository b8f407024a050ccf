"""One file per kind of figure: its cells, its drawing, its claims and the verdict on them."""

from reproduce.figures import comparing, hessians, noisy_examples, ols_comparison, ours, theory
from reproduce.study import Study

# In the order in which `reproduce all` runs them: what the paper claims most about comes first.
STUDIES: dict[str, Study] = {
    study.name: study
    for study in (
        ours.DEMO,
        theory.SIGMOID_NOISE,
        theory.SECOND_ORDER,
        comparing.DATA_DEPENDENT,
        comparing.CIFAR10_NOISY,
        noisy_examples.MNIST_NOISE,
        noisy_examples.ILLUSTRATION,
        ols_comparison.STUDY,
        comparing.CIFAR100_NOISY,
        comparing.NATURAL_NOISE,
        hessians.FIXED_COVARIANCE,
        hessians.HESSIAN_INIT,
        ours.STRATEGIES,
    )
}
