"""Generalised linear models by gradient descent, Newton, variational GD and VON.

`fit_glm` is the solver to use; `steps` holds the four updates exactly as the paper prints them.
"""

from bayesmooth.theory.glm.fit import GLMFit, fit_glm, noise_by_method

__all__ = ["GLMFit", "fit_glm", "noise_by_method"]
