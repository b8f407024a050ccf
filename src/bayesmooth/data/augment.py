"""Augmentation of picture batches: pad and crop, flip. The draw is apart from its use."""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor

from bayesmooth.errors import InputError


@dataclass(frozen=True)
class Augment:
    """Pad by `pad` black pixels, cut a random window, flip half of the pictures.

    The window is `size` × `size`; by default as large as the picture was.

    >>> augment, pictures = Augment(pad=4), torch.zeros(8, 3, 32, 32)
    >>> augment.apply(pictures, augment.draw(8, torch.Generator().manual_seed(0))).shape
    torch.Size([8, 3, 32, 32])
    """

    pad: int = 0
    flip: bool = False
    size: int | None = None

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Three large numbers a picture: where to cut (row, column) and whether to flip."""
        return torch.randint(2**31, (count, 3), generator=generator)

    def apply(self, pictures: Tensor, draw: Tensor) -> Tensor:
        """The pictures (B, C, H, W), each cut and flipped as its row of `draw` says."""
        if pictures.ndim != 4:
            shape = tuple(pictures.shape)
            raise InputError(
                f"inputs of shape {shape}: only pictures (B, C, H, W) can be augmented"
            )
        height, width = (self.size,) * 2 if self.size else pictures.shape[2:]
        padded = F.pad(pictures, (self.pad,) * 4)
        if height > padded.shape[2] or width > padded.shape[3]:
            raise InputError(
                f"{self} on pictures of {list(pictures.shape[2:])}: must fit; raise pad"
            )
        # All windows of both mirror images as a view, one of them copied out: no loop over pictures.
        # numpy, because its indexing is 7 times as fast here.
        both = torch.stack((padded, padded.flip(-1))) if self.flip else padded.unsqueeze(0)
        windows = sliding_window_view(both.numpy(), (height, width), axis=(3, 4))
        rows, columns, mirrored = (draw % torch.tensor([*windows.shape[3:5], len(both)])).T
        return torch.from_numpy(
            windows[mirrored.numpy(), np.arange(len(pictures)), :, rows.numpy(), columns.numpy()]
        )


AUGMENTATIONS: dict[str, Augment | None] = {
    "none": None,
    "crop": Augment(pad=4),
    "flip": Augment(flip=True),
    "crop_flip": Augment(pad=4, flip=True),
    "crop224_flip": Augment(size=224, flip=True),
}
"""What a recipe can name: `crop_flip` is CIFAR's usual one, `crop224_flip` cuts 224 out of 256."""
