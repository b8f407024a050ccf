from itertools import islice
from typing import ClassVar

import pytest
import torch

from bayesmooth.data.draws import Batch, read_ahead
from bayesmooth.errors import InputError
from bayesmooth.losses import LOSSES, Loss
from bayesmooth.optim import OPTIMIZERS
from bayesmooth.train import prepare, train
from bayesmooth.train.loop import Loop


def weights_after(loop, steps):
    for _ in islice(loop.steps(), steps):
        pass
    return {name: weight.detach().clone() for name, weight in loop.model.named_parameters()}


def far_apart(one, other):
    return max(float((one[name] - other[name]).abs().max()) for name in one)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_trains_with_every_optimizer(loss, optimizer, tiny, loop):
    needed = {"als": {"weight": 0.1}, "alasca": {"stages": ["layer1"]}}.get(loss, {})
    model = {"name": "resnet_small", "widths": [4], "blocks": [1]} if loss == "alasca" else {"name": "linear"}
    recipe = tiny(loss={"name": loss, **needed}, optimizer={"name": optimizer, "lr": 0.1}, model=model)
    trained = loop(recipe)
    before = weights_after(trained, 0)
    assert far_apart(before, weights_after(trained, 2)) > 0
    assert trained.figures().keys() == {"loss", "accuracy"}


def test_bfloat16_and_channels_last_follow_float32(tiny, loop):
    start = {"model": {"name": "cnn", "widths": [4, 8]}}
    plain = weights_after(loop(tiny(**start)), 5)
    assert 0 < far_apart(plain, weights_after(loop(tiny(**start, train={"precision": "bfloat16"})), 5)) < 0.01
    assert far_apart(plain, weights_after(loop(tiny(**start, train={"channels_last": True})), 5)) < 1e-5


def test_compile_is_asked_for_the_forward_pass(tiny, loop, monkeypatch):
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda model: lambda inputs: compiled.append(1) or model(inputs))
    plain = weights_after(loop(tiny()), 3)
    assert far_apart(plain, weights_after(loop(tiny(train={"compile": True})), 3)) == 0
    assert len(compiled) == 3


def test_the_gradient_that_the_optimizer_sees_is_clipped(tiny, loop):
    free = loop(tiny(optimizer={"name": "sgd", "lr": 1.0}, schedule={"name": "constant"}))
    before = weights_after(free, 0)
    step = weights_after(free, 1)
    short = loop(tiny(optimizer={"name": "sgd", "lr": 1.0}, schedule={"name": "constant"}, train={"clip_norm": 0.01}))
    clipped = weights_after(short, 1)
    lengths = [sum(float(((s[n] - before[n]) ** 2).sum()) for n in before) ** 0.5 for s in (step, clipped)]
    assert lengths[0] > 0.1
    assert lengths[1] == pytest.approx(0.01, rel=1e-4)


class Witness(Loss):
    """Cross-entropy that writes down what the loop gives it."""

    seen: ClassVar[list] = []

    def per_example(self, logits, labels, *, index, epoch, past, **extra):
        self.seen.append((index, labels, epoch, past))
        return torch.nn.functional.cross_entropy(logits, labels, reduction="none")


def test_the_loss_gets_positions_in_the_training_set_and_the_time(tiny, loop, monkeypatch):
    monkeypatch.setitem(LOSSES, "witness", Witness)
    monkeypatch.setattr(Witness, "seen", [])
    watched = loop(tiny(loss={"name": "witness"}))
    weights_after(watched, 5)
    positions = torch.cat([index for index, *_ in Witness.seen])
    assert torch.equal(positions.sort().values, torch.arange(96))
    for index, labels, _, past in Witness.seen:
        assert torch.equal(watched.splits.train.labels[index], labels)
        assert past is None
    assert [epoch for _, _, epoch, _ in Witness.seen] == pytest.approx([0, 0.2, 0.4, 0.6, 0.8])


def test_the_past_self_is_the_best_checkpoint_so_far(tiny, tmp_path, monkeypatch):
    class Remembering(Witness):
        needs = frozenset({"past"})

    monkeypatch.setitem(LOSSES, "remembering", Remembering)
    monkeypatch.setattr(Witness, "seen", [])
    train(tiny(loss={"name": "remembering"}), tmp_path / "run", quiet=True)
    pasts = [past for *_, past in Witness.seen]
    assert all(past is None for past in pasts[:5])
    assert all(torch.allclose(past.sum(1), torch.ones(len(past))) for past in pasts[5:])
    with pytest.raises(InputError, match=r"data\.validation = 0\.0 .*set data\.validation = 0\.1"):
        train(tiny(loss={"name": "remembering"}, data={"validation": 0.0}), tmp_path / "other", quiet=True)
    with pytest.raises(InputError, match=r"evaluate\.every = 9 it has none; .*evaluate\.every = 1"):
        train(tiny(loss={"name": "remembering"}, evaluate={"every": 9}), tmp_path / "another", quiet=True)


def test_mixup_changes_the_steps_and_no_hash_of_other_recipes(tiny, loop):
    plain, mixed = tiny(), tiny(data={"mixup": 0.4})
    assert "mixup" not in plain.to_dict()["data"]
    assert far_apart(weights_after(loop(plain), 3), weights_after(loop(mixed), 3)) > 1e-4
    again = weights_after(loop(mixed), 3)
    assert far_apart(weights_after(loop(mixed), 3), again) == 0


def test_the_effective_sample_size_is_the_number_of_training_examples_unless_set(tiny, loop):
    groups = [
        loop(tiny(optimizer={"name": "ivon", "lr": 0.1, **given})).optimizer.param_groups[0]
        for given in ({}, {"ess": 7})
    ]
    assert [group["ess"] for group in groups] == [96, 7]


def test_a_correction_uses_the_matrix_that_the_noise_was_drawn_from(tiny, loop):
    built = loop(tiny(loss={"name": "forward_correction"}))
    matrix = torch.from_numpy(built.splits.corruption.matrix)
    torch.testing.assert_close(built.loss.log_columns.exp().T.double(), matrix, rtol=1e-5, atol=1e-7)
    with pytest.raises(InputError, match=r"\[loss\] forward_correction: needs 'transition'"):
        loop(tiny(loss={"name": "forward_correction"}, corruption={"name": "none"}))


def test_a_bad_option_is_named_with_its_section(tiny, loop):
    with pytest.raises(InputError, match=r"\[optimizer\] sam: rho=-1.0: must be ≥ 0"):
        loop(tiny(optimizer={"name": "sam", "rho": -1, "lr": 0.1}))


def test_a_last_batch_of_one_which_batch_norm_cannot_do_with_is_named(tiny, loop):
    built = loop(tiny(model={"name": "mlp", "hidden": [8], "batchnorm": True}, train={"batch_size": 19}))
    with pytest.raises(
        InputError, match=r"\[train\] batch_size = 19: the last batch has one example.*; choose another"
    ):
        list(built.steps())


ON_META = sorted({*LOSSES} - {"loras"})  # which turns autocast off, and meta has none


@pytest.mark.parametrize(("loss", "optimizer"), [*((loss, "sgd") for loss in ON_META), ("ce", "adamw"), ("ce", "sam")])
def test_no_step_reads_from_the_device(loss, optimizer, tiny):
    """A tensor on `meta` has no values: whoever reads one raises an error, where a GPU would wait."""
    needed = {"als": {"weight": 0.1}, "alasca": {"stages": ["layer1"]}}.get(loss, {})
    recipe = tiny(
        model={"name": "resnet_small", "widths": [4], "blocks": [1]},
        loss={"name": loss, **needed},
        optimizer={"name": optimizer, "lr": 0.1},
        data={"augment": "crop_flip"},  # where the pictures are, too
    )
    loop = Loop(recipe, prepare(recipe), torch.device("meta"))
    loop.batch = 1  # the loss of the first batch, and of every twentieth after it, is looked at
    assert loop.splits.train.inputs.is_meta
    assert len(list(loop.steps())) == 4


def test_a_thread_reads_ahead_what_memory_does_not_hold_and_its_errors_arrive(tiny):
    batches = [tuple(torch.full((2,), float(number)) for _ in range(3)) for number in range(5)]

    def read():
        yield from batches
        raise InputError("a picture is damaged")

    arrived, meta = list[Batch](), torch.device("meta")
    with pytest.raises(InputError, match="a picture is damaged"):
        arrived.extend(read_ahead(read(), meta))
    assert len(arrived) == 5
    assert all(part.is_meta for batch in arrived for part in batch)
    assert [*read_ahead(iter(batches), torch.device("cpu"))] == batches
