"""`Source`, a data set where it lies; its labels and their corruption, and batches of it."""

from bayesmooth.data.catalog import datasets, load
from bayesmooth.data.draws import AUGMENTATIONS, Augment, Corruption, batches, corrupt, label_hash, mixup, split
from bayesmooth.data.labels import Labels
from bayesmooth.data.opening import open_source
from bayesmooth.data.source import Columns, Source, data_root, keep_data_in

__all__ = [
    "AUGMENTATIONS",
    "Augment",
    "Columns",
    "Corruption",
    "Labels",
    "Source",
    "batches",
    "corrupt",
    "data_root",
    "datasets",
    "keep_data_in",
    "label_hash",
    "load",
    "mixup",
    "open_source",
    "split",
]
