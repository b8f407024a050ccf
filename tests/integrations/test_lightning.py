"""Lightning comes to the weights of a plain loop: accumulation, clipping, bf16, checkpoints, two processes."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bayesmooth import IVON, InputError

lightning = pytest.importorskip("lightning", reason="lightning is an extra")

from bayesmooth.integrations.lightning import PosteriorCallback  # noqa: E402

pytestmark = pytest.mark.usefixtures("quiet")


class Module(lightning.LightningModule):
    def __init__(self, task, **settings):
        super().__init__()
        self.net, self.calls, self.settings = task.net(), 0, task.settings | settings

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, _):
        self.calls += 1
        return nn.functional.cross_entropy(self(batch[0]).float(), batch[1])

    def validation_step(self, batch, _):
        self.log("val_loss", nn.functional.cross_entropy(self(batch[0]).float(), batch[1]))

    def test_step(self, batch):
        """Lightning's name for what it calls in `trainer.test`; the callback does the work."""

    def configure_optimizers(self):
        return IVON(self.parameters(), **self.settings)


def loader(task, size=10):
    return DataLoader(TensorDataset(task.x, task.y), batch_size=size)


@pytest.fixture
def fit(task, tmp_path):
    def train(module, size=10, resume=None, **settings):
        defaults = {
            "max_epochs": 2,
            "accelerator": "cpu",
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "limit_val_batches": 0,
            "default_root_dir": tmp_path,
        }
        trainer = lightning.Trainer(**defaults | settings)
        trainer.fit(module, loader(task, size), loader(task, size), ckpt_path=resume)
        return trainer

    return train


@pytest.mark.parametrize("callbacks", [[], [PosteriorCallback()]], ids=["alone", "callback"])
def test_automatic_optimization_takes_ivon_with_or_without_the_callback(task, fit, by_hand, callbacks):
    module = Module(task)
    fit(module, callbacks=callbacks)
    task.assert_same(module.net, by_hand([[part] for part in task.parts() * 2]))


@pytest.mark.parametrize("callbacks", [[], [PosteriorCallback()]], ids=["alone", "callback"])
def test_several_samples_per_step(task, fit, by_hand, callbacks):
    module = Module(task, mc_samples=2)
    fit(module, size=40, max_epochs=5, callbacks=callbacks)
    assert module.calls == 10
    task.assert_same(module.net, by_hand([task.parts(40)] * 5, mc_samples=2))


def test_micro_batches_share_a_sample_and_are_clipped_together(task, fit, by_hand):
    module = Module(task)
    how = {"accumulate_grad_batches": 2, "gradient_clip_val": 0.05, "max_epochs": 3}
    fit(module, callbacks=[PosteriorCallback()], **how)
    steps = [task.parts()[:2], task.parts()[2:]] * 3
    task.assert_same(module.net, by_hand(steps, clip=0.05), atol=1e-5)


def test_without_the_callback_mixed_gradients_are_refused(task, fit):
    with pytest.raises(InputError):
        fit(Module(task), accumulate_grad_batches=2)
    with pytest.raises(InputError, match="a micro-batch is seen once only"):
        fit(Module(task, mc_samples=2), accumulate_grad_batches=2, callbacks=[PosteriorCallback()])


@pytest.mark.parametrize("clip", [None, 0.05])
def test_bf16_stays_near_the_plain_loop(task, fit, by_hand, clip):
    module = Module(task)
    fit(module, precision="bf16-mixed", gradient_clip_val=clip, callbacks=[PosteriorCallback()])
    assert task.distance(module.net, by_hand([[part] for part in task.parts() * 2], clip=clip)) < 0.02


def fp16():
    """What precision="16-mixed" is on a GPU; on the CPU Lightning takes bf16-mixed instead."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    return lightning.pytorch.plugins.MixedPrecision("16-mixed", "cpu", scaler)


class Overflows(Module):
    """As with float16: the gradients of the second micro-batch are infinite."""

    def training_step(self, batch, number):
        loss = super().training_step(batch, number)
        return loss * (float("inf") if self.calls == 2 else 1.0)


@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("together", [1, 2])
def test_fp16_stays_near_the_plain_loop_without_the_steps_that_overflow(task, fit, by_hand, together, clip):
    module, precision = Overflows(task), fp16()
    how = {"accumulate_grad_batches": together, "gradient_clip_val": clip, "max_epochs": 3}
    fit(module, plugins=[precision], callbacks=[PosteriorCallback()], **how)
    assert precision.scaler.get_scale() == 512.0
    batches = task.parts() * 3
    steps = [batches[i : i + together] for i in range(0, 12, together)]
    skipped = 2 // together - 1  # the step that the second micro-batch belongs to
    kept = steps[:skipped] + steps[skipped + 1 :]
    assert task.distance(module.net, by_hand(kept, clip=clip)) < 0.005
    assert task.distance(module.net, by_hand(steps, clip=clip)) > 0.01


def test_fp16_without_one_sample_per_batch_is_refused(task, fit):
    with pytest.raises(InputError, match="no sample"):
        fit(Module(task), plugins=[fp16()])
    with pytest.raises(InputError, match="mc_samples=2 with a GradScaler"):
        fit(Module(task, mc_samples=2), plugins=[fp16()], callbacks=[PosteriorCallback()])


def test_a_resumed_run_ends_where_the_whole_one_does(task, fit, tmp_path):
    whole, first, resumed = Module(task), Module(task), Module(task)
    fit(whole, max_epochs=4, callbacks=[PosteriorCallback()])
    fit(first, max_epochs=2, callbacks=[PosteriorCallback()]).save_checkpoint(tmp_path / "half.ckpt")
    fit(resumed, max_epochs=4, callbacks=[PosteriorCallback()], resume=tmp_path / "half.ckpt")
    task.assert_same(resumed, whole, atol=0)


@pytest.mark.parametrize("precision", ["32-true", "64-true"])
def test_both_predictions_are_logged_after_validation_and_test(task, fit, precision):
    module = Module(task)
    trainer = fit(module, limit_val_batches=1.0, callbacks=[PosteriorCallback(samples=8)], precision=precision)
    inputs = task.x.to(module.net[0].weight.dtype)
    averaged = trainer.optimizers[0].posterior(module).predict(module, inputs, 8)
    at_the_mean = module(inputs).softmax(-1)
    logged = dict(trainer.callback_metrics)
    trainer.test(module, loader(task), verbose=False)
    logged |= trainer.callback_metrics
    for stage in ("val", "test"):
        for way, predicted in {"averaged": averaged, "mean": at_the_mean}.items():
            nll = nn.functional.nll_loss(predicted.log(), task.y)
            right = (predicted.argmax(-1) == task.y).float().mean()
            expected = {f"{stage}_nll_{way}": float(nll), f"{stage}_accuracy_{way}": float(right)}
            found = {name: float(logged[name]) for name in expected}
            assert found == pytest.approx(expected, rel=1e-4)


def test_a_trainer_that_has_not_fitted_has_no_posterior(task, fit):
    other = lightning.Trainer(accelerator="cpu", logger=False, callbacks=[PosteriorCallback()])
    with pytest.raises(InputError, match=r"0 IVON .* with the Trainer that has fitted"):
        other.test(Module(task), loader(task), verbose=False)
    with pytest.raises(InputError, match="a batch is a list without labels"):
        fit(Module(task), callbacks=[PosteriorCallback()]).test(Module(task), DataLoader(TensorDataset(task.x)))


def test_validation_between_micro_batches_is_at_the_mean(task, fit):
    seen = []

    class Watched(Module):
        def validation_step(self, batch, _):
            seen.append(self.net[0].weight.detach().clone())

    module = Watched(task, lr=0.0)
    callbacks = [PosteriorCallback(samples=0)]
    how = {"val_check_interval": 1, "limit_val_batches": 1, "accumulate_grad_batches": 4}
    fit(module, max_epochs=1, callbacks=callbacks, num_sanity_val_steps=0, **how)
    assert len(seen) == 4
    assert all(torch.equal(weight, task.net()[0].weight) for weight in seen)


def test_an_exception_leaves_the_mean(task, fit):
    class Fails(Module):
        def training_step(self, batch, number):
            raise RuntimeError

    module = Fails(task)
    with pytest.raises(RuntimeError):
        fit(module, callbacks=[PosteriorCallback()])
    task.assert_same(module.net, task.net(), atol=0)


@pytest.mark.slow
def test_two_processes_are_one_on_the_joined_batch(task, by_hand, two_processes):
    # the sampler deals out the rows in turn, and two batches of each process make a step
    dealt = [(task.x[rank::2].split(10), task.y[rank::2].split(10)) for rank in (0, 1)]
    step = [(x, y) for xs, ys in dealt for x, y in zip(xs, ys, strict=True)]
    alone = by_hand([step] * 3)
    for weights, figures in two_processes("lightning", [{}]):
        torch.testing.assert_close(weights, [*alone.parameters()], atol=1e-5, rtol=0)
        nll = nn.functional.nll_loss(figures["predicted"].log(), task.y)
        assert float(figures["val_nll_averaged"]) == pytest.approx(float(nll), rel=1e-5)
