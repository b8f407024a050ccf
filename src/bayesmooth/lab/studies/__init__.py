"""One file per figure of the paper: its recipes, its drawing, its claims and the verdict on them."""

from bayesmooth.lab.studies.figures import (
    cifar10_noisy,
    cifar100_noisy,
    data_dependent,
    demo,
    fixed_covariance,
    hessian_init,
    illustration,
    mnist_noise,
    natural_noise,
    ols_comparison,
    sigmoid_noise,
    strategies,
    structured,
)
from bayesmooth.lab.studies.study import Study

# In the order in which `reproduce all` runs them: what the paper claims most about comes first.
STUDIES: dict[str, Study] = {
    module.STUDY.name: module.STUDY
    for module in (
        demo,
        sigmoid_noise,
        data_dependent,
        cifar10_noisy,
        mnist_noise,
        illustration,
        ols_comparison,
        cifar100_noisy,
        natural_noise,
        fixed_covariance,
        hessian_init,
        strategies,
        structured,
    )
}

__all__ = ["STUDIES", "Study"]
