import pytest
import torch

from bayesmooth.data import AUGMENTATIONS, Augment
from bayesmooth.errors import InputError


def slow(augment, pictures, draw):
    """One picture after the other, as one would say it."""
    result = []
    for picture, (row, column, mirror) in zip(pictures, draw.tolist(), strict=True):
        padded = torch.nn.functional.pad(picture, (augment.pad,) * 4)
        size = augment.size or picture.shape[-1]
        if augment.flip and mirror % 2:
            padded = padded.flip(-1)
        places = padded.shape[-1] - size + 1
        row, column = row % places, column % places
        result.append(padded[:, row : row + size, column : column + size])
    return torch.stack(result)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize(
    "augment",
    [Augment(pad=4), Augment(flip=True), Augment(pad=2, flip=True), Augment(size=5, flip=True)],
)
def test_the_batch_is_augmented_as_picture_by_picture(augment, dtype):
    pictures = torch.randint(0, 256, (50, 3, 8, 8), generator=torch.Generator().manual_seed(0)).to(
        dtype
    )
    draw = augment.draw(50, torch.Generator().manual_seed(1))
    result = augment.apply(pictures, draw)
    assert result.dtype == dtype
    assert torch.equal(result, slow(augment, pictures, draw))


def test_every_place_and_both_mirror_images_occur():
    augment = Augment(pad=1, flip=True)
    draw = augment.draw(2000, torch.Generator().manual_seed(0))
    picture = torch.arange(1.0, 10.0).view(1, 1, 3, 3).expand(2000, -1, -1, -1)
    assert len(augment.apply(picture, draw).unique(dim=0)) == 9 * 2


def test_what_cannot_be_cut_is_refused():
    augment = AUGMENTATIONS["crop224_flip"]
    for shape, message in (((2, 3, 32, 32), "must fit"), ((2, 10), "only pictures")):
        with pytest.raises(InputError, match=message):
            augment.apply(torch.zeros(shape), augment.draw(2, torch.Generator()))
