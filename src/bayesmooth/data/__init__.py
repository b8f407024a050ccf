"""Examples in memory and on disk, their corruption, and batches of them."""

from bayesmooth.data.augment import AUGMENTATIONS, Augment
from bayesmooth.data.batches import batches, count_batches, split
from bayesmooth.data.catalog import DATASETS, check, describe, load
from bayesmooth.data.corrupt import corrupt
from bayesmooth.data.examples import Examples
from bayesmooth.data.noisefile import Corruption

__all__ = [
    "AUGMENTATIONS",
    "DATASETS",
    "Augment",
    "Corruption",
    "Examples",
    "batches",
    "check",
    "corrupt",
    "count_batches",
    "describe",
    "load",
    "split",
]
