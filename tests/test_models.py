import pytest
import torch

from bayesmooth.errors import InputError
from bayesmooth.models import (
    MODELS,
    cnn,
    cnn_batchnorm,
    linear,
    load_weights,
    mlp,
    resnet18,
    resnet34,
    resnet50,
    resnet_small,
)

SHAPES = {"linear": (7,), "mlp": (1, 8, 8), "cnn": (1, 28, 28), "resnet50": (3, 64, 64)}


def count_parameters(model):
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


@pytest.mark.parametrize("name", MODELS)
def test_every_model_gives_a_logit_a_class_and_trains_all_its_parameters(name):
    shape = SHAPES.get(name, (3, 16, 16))
    model = MODELS[name](num_classes=5, input_shape=shape)
    logits = model(torch.randn(2, *shape, generator=torch.Generator().manual_seed(0)))
    assert logits.shape == (2, 5)
    logits.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_parameter_counts_are_the_published_ones():
    with torch.device("meta"):
        assert count_parameters(linear(10, input_shape=(784,))) == 7850
        assert count_parameters(mlp(10, input_shape=(784,), hidden=(100,))) == 785 * 100 + 1010
        assert count_parameters(cnn()) == 160 + 4640 + 18496 + 64 * 49 * 10 + 10
        assert count_parameters(cnn_batchnorm()) == 9 * (3 * 32 + 32 * 64 + 64 * 128) + 2 * 224 + 5130
        assert count_parameters(resnet18()) == 11_173_962
        assert count_parameters(resnet34()) == 21_282_122
        assert count_parameters(resnet50()) == 25_557_032


@pytest.mark.parametrize("name", ["mlp", "cnn", "cnn_batchnorm", "resnet_small"])
def test_the_seed_decides_the_weights_and_the_global_generator_stays(name):
    before = torch.get_rng_state()
    first, again, other = (MODELS[name](seed=seed).state_dict() for seed in (0, 0, 1))
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not all(torch.equal(first[key], other[key]) for key in first)


def test_cifar_stages_halve_the_picture_from_the_second_on():
    model, sizes = resnet18(), {}
    for name in ("layer1", "layer2", "layer3", "layer4"):
        model.get_submodule(name).register_forward_hook(
            lambda _, __, out, name=name: sizes.update({name: tuple(out.shape[1:])})
        )
    model(torch.zeros(2, 3, 32, 32))
    assert sizes == {"layer1": (64, 32, 32), "layer2": (128, 16, 16), "layer3": (256, 8, 8), "layer4": (512, 4, 4)}


def test_resnet50_has_the_names_and_shapes_of_public_weights():
    with torch.device("meta"):
        state = resnet50().state_dict()
    assert len(state) == 320
    assert {
        "conv1.weight": (64, 3, 7, 7),
        "bn1.running_mean": (64,),
        "layer1.0.conv3.weight": (256, 64, 1, 1),
        "layer1.0.downsample.0.weight": (256, 64, 1, 1),
        "layer2.0.conv2.weight": (128, 128, 3, 3),
        "layer3.5.bn3.bias": (1024,),
        "layer4.0.downsample.1.num_batches_tracked": (),
        "layer4.2.conv1.weight": (512, 2048, 1, 1),
        "fc.weight": (1000, 2048),
        "fc.bias": (1000,),
    }.items() <= {name: tuple(value.shape) for name, value in state.items()}.items()


def test_weights_from_a_file_replace_all_but_a_new_head(tmp_path):
    public = {key: value + 1 for key, value in resnet_small(3).state_dict().items()}
    torch.save(public, tmp_path / "w.pth")
    whole, body, fresh = (resnet_small(3), resnet_small(2, seed=4), resnet_small(2, seed=4).state_dict())
    load_weights(whole, tmp_path / "w.pth")
    load_weights(body, tmp_path / "w.pth", new_head=True)
    assert all(torch.equal(value, public[key]) for key, value in whole.state_dict().items())
    for key, value in body.state_dict().items():
        assert torch.equal(value, fresh[key] if key.startswith("fc.") else public[key])


def test_a_head_for_other_classes_is_said_to_be_one(tmp_path):
    torch.save({"fc.weight": torch.zeros(3, 2048), "fc.bias": torch.zeros(3)}, tmp_path / "w.pth")
    with torch.device("meta"), pytest.raises(InputError, match=r"of other classes: .*new_head=True"):
        load_weights(resnet50(2), tmp_path / "w.pth")
    with torch.device("meta"), pytest.raises(InputError, match=r"another network, .*: Missing key"):
        load_weights(resnet50(2), tmp_path / "w.pth", new_head=True)


class Hostile:
    def __reduce__(self):
        return eval, ("1",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"conv1.weight": torch.zeros(1)}, r"the weights are those of another network, .*: Missing key"),
        ([1, 2], "does not hold a state dict"),
        ({"model": {"a": 1}}, "does not hold a state dict"),
        ({"a": Hostile()}, "not a state dict that can be read"),
        (None, "cannot be read .No such file"),
    ],
)
def test_other_files_are_refused_with_the_reason(tmp_path, content, message):
    path = tmp_path / "w.pth"
    if content is not None:
        torch.save(content, path)
    with torch.device("meta"), pytest.raises(InputError, match=message):
        load_weights(resnet50(), path)


def test_shapes_that_cannot_be_are_refused():
    with pytest.raises(InputError, match="3 × 3 have no pixel left"):
        cnn(input_shape=(1, 3, 3))
    with pytest.raises(InputError, match="14 × 14 have no pixel left"):
        cnn_batchnorm(input_shape=(3, 14, 14))
    with pytest.raises(InputError, match="one of each per stage"):
        resnet_small(widths=(8, 16), blocks=(1,))
