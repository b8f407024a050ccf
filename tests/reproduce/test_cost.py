import pytest

from bayesmooth.data import load
from bayesmooth.train import Recipe
from reproduce.scale import SIZES, model_flops, run_flops


def test_resnet34_costs_three_times_its_published_forward_pass():
    assert model_flops("resnet34", (), 10, (3, 32, 32)) == pytest.approx(3 * 2 * 1.16e9, rel=0.01)


def test_resnet50_costs_three_times_its_published_forward_pass():
    assert model_flops("resnet50", (), 1000, (3, 224, 224)) == pytest.approx(
        3 * 2 * 4.09e9, rel=0.02
    )


def test_sam_costs_twice_sgd():
    tree = {"data": {"name": "cifar10"}, "evaluate": {"samples": 1}, "train": {"epochs": 100}}
    sgd, sam = (
        run_flops(Recipe.from_dict({**tree, "optimizer": {"name": name, "lr": 0.1}}))
        for name in ("sgd", "sam")
    )
    assert sam / sgd == pytest.approx(2, rel=0.01)


def test_the_facts_about_a_data_set_are_those_of_its_files():
    train, test, classes, shape = SIZES["digits"]
    assert (len(load("digits", "train")), len(load("digits", "test"))) == (train, test)
    assert load("digits", "train").num_classes == classes
    assert load("digits", "train").input_shape == shape
