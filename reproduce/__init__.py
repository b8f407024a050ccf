"""The paper beside the package: its figures and a demo, with recipes, drawings, claims and verdicts."""

from reproduce import comparing, demo, label_noise, theory
from reproduce.study import Study

# In the order in which `reproduce all` runs them: what the paper claims most about comes first.
STUDIES: dict[str, Study] = {
    study.name: study
    for study in (
        demo.DEMO,
        theory.SIGMOID_NOISE,
        theory.SECOND_ORDER,
        comparing.DATA_DEPENDENT,
        comparing.CIFAR10_NOISY,
        label_noise.MNIST_NOISE,
        label_noise.ILLUSTRATION,
        label_noise.OLS_COMPARISON,
        comparing.CIFAR100_NOISY,
        comparing.NATURAL_NOISE,
        comparing.FIXED_COVARIANCE,
        comparing.HESSIAN_INIT,
    )
}

__all__ = ["STUDIES", "Study"]
