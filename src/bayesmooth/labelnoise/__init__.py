"""Label noise of real networks: ε of every example, from a model and the Gaussian over its weights.

The paper calls three things label noise; here they have three names, all signed (K entries per example, which
sum to zero) and all with the sign of eq:labelnoiseGLMGD, ε = A′(f(m)) − E_q[A′(f(θ))]: positive where the
prediction at the mean is more certain than the averaged one.
"""

from bayesmooth.labelnoise.result import (
    LabelNoise,
    exact_label_noise,
    join,
    smoothed_labels_by_class,
)
from bayesmooth.labelnoise.sampling import label_noise, label_noise_chunks

__all__ = [
    "LabelNoise",
    "exact_label_noise",
    "join",
    "label_noise",
    "label_noise_chunks",
    "smoothed_labels_by_class",
]
