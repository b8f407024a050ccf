"""Examples in memory and on disk, their corruption, and batches of them."""

from bayesmooth.data.batches import AUGMENTATIONS, Augment, batches, count_batches, mixup, split
from bayesmooth.data.catalog import DATASETS, check, describe_datasets, load
from bayesmooth.data.corrupt import Corruption, corrupt, label_hash
from bayesmooth.data.examples import Examples
from bayesmooth.data.reading import data_root

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
    "data_root",
    "describe_datasets",
    "label_hash",
    "load",
    "mixup",
    "split",
]
