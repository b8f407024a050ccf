"""Trainer and Accelerate come to the weights of a plain loop: accumulation, clipping, bf16, resumed runs."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bayesmooth import IVON, InputError

transformers = pytest.importorskip("transformers", reason="transformers is an extra")
accelerate = pytest.importorskip("accelerate", reason="accelerate is an extra")

from bayesmooth.integrations.huggingface import IVONCallback  # noqa: E402

pytestmark = pytest.mark.usefixtures("quiet")


class Classifier(nn.Module):
    """The task's network with the manners of Hugging Face: keywords in, loss and logits out."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x, labels=None):
        logits = self.net(x)
        loss = None if labels is None else nn.functional.cross_entropy(logits.float(), labels)
        return transformers.modeling_outputs.SequenceClassifierOutput(loss=loss, logits=logits)


@pytest.fixture
def trainer(task, tmp_path):
    rows = [{"x": x, "labels": y} for x, y in zip(task.x, task.y, strict=True)]

    def make(callback=None, model=None, optimizer=None, **settings):
        model = model or Classifier(task.net())
        optimizer = optimizer or IVON(model.parameters(), **task.settings)
        defaults = {
            "output_dir": str(tmp_path),
            "use_cpu": True,
            "report_to": [],
            "disable_tqdm": True,
            "per_device_train_batch_size": 10,
            "max_grad_norm": 0.0,
            "save_strategy": "no",
            "logging_strategy": "no",
            "train_sampling_strategy": "sequential",
        }
        return transformers.Trainer(
            model,
            transformers.TrainingArguments(**defaults | settings),
            train_dataset=rows,
            eval_dataset=rows,
            optimizers=(optimizer, torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)),
            callbacks=[callback or IVONCallback()],
        )

    return make


def parts(task, size=10):
    return [*zip(task.x.split(size), task.y.split(size), strict=True)]


def test_trainer_is_the_plain_loop(task, trainer, by_hand):
    trained = trainer(num_train_epochs=2)
    trained.train()
    task.assert_same(trained.model.net, by_hand([[part] for part in parts(task) * 2]))


def test_micro_batches_share_a_sample_and_are_clipped_together(task, trainer, by_hand):
    trained = trainer(num_train_epochs=3, gradient_accumulation_steps=2, max_grad_norm=0.05)
    trained.train()
    steps = [parts(task)[:2], parts(task)[2:]] * 3
    task.assert_same(trained.model.net, by_hand(steps, clip=0.05), atol=1e-5)


def test_bf16_stays_near_the_plain_loop(task, trainer, by_hand):
    trained = trainer(num_train_epochs=2, bf16=True)
    trained.train()
    plain = by_hand([[part] for part in parts(task) * 2])
    for p, q in zip(trained.model.net.parameters(), plain.parameters(), strict=True):
        assert p.dtype == torch.float32
        assert float((p - q).detach().norm() / q.detach().norm()) < 0.1


def test_a_resumed_run_ends_where_the_whole_one_does(task, trainer, tmp_path):
    whole = trainer(num_train_epochs=3)
    whole.train()
    saving = {"save_strategy": "steps", "save_steps": 5}
    trainer(num_train_epochs=3, **saving).train()
    resumed = trainer(num_train_epochs=3)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-5"))
    task.assert_same(resumed.model, whole.model, atol=0)


def test_evaluations_are_at_the_mean_and_averaged(task, trainer):
    trained = trainer(IVONCallback(samples=8), num_train_epochs=5, eval_strategy="epoch")
    trained.train()
    model, metrics = trained.model, trained.evaluate()
    ivon = trained.optimizer.optimizer
    averaged = ivon.posterior(model).predict(model, {"x": task.x}, 8)
    nll = nn.functional.nll_loss(averaged.log(), task.y)
    assert metrics["eval_averaged_nll"] == pytest.approx(float(nll), rel=1e-4)
    mean = nn.functional.cross_entropy(model.net(task.x), task.y)
    assert metrics["eval_loss"] == pytest.approx(float(mean), rel=1e-4)
    logged = [
        row["eval_averaged_nll"] for row in trained.state.log_history if "eval_averaged_nll" in row
    ]
    assert len(logged) == 6


class Fails(transformers.TrainerCallback):
    """Ctrl-C in the middle of the second step."""

    def on_substep_end(self, args, state, control, **given):
        if state.global_step == 1:
            raise KeyboardInterrupt


def test_after_an_exception_close_puts_the_mean_back(task, trainer, by_hand):
    callback = IVONCallback()
    broken = trainer(callback, num_train_epochs=1, gradient_accumulation_steps=2)
    broken.add_callback(Fails())
    with pytest.raises(KeyboardInterrupt):
        broken.train()
    mean = by_hand([parts(task)[:2]])
    assert not torch.allclose(broken.model.net[0].weight, mean[0].weight, atol=1e-3)
    callback.close()
    task.assert_same(broken.model.net, mean, atol=1e-5)


def test_what_does_not_fit_is_refused(task, trainer):
    model = Classifier(task.net())
    with pytest.raises(InputError, match="the optimizer is SGD: must be IVON"):
        trainer(model=model, optimizer=torch.optim.SGD(model.parameters(), 0.1)).train()
    several = IVON(model.parameters(), **task.settings, mc_samples=2)
    with pytest.raises(InputError, match="mc_samples=2: must be 1"):
        trainer(model=model, optimizer=several).train()


def prepared(task, accumulate=1):
    accelerate.state.AcceleratorState._reset_state(True)
    accelerate.state.GradientState._reset_state()
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=accumulate)
    model = task.net()
    optimizer = IVON(model.parameters(), **task.settings)
    loader = DataLoader(TensorDataset(task.x, task.y), batch_size=10)
    return accelerator, *accelerator.prepare(model, optimizer, loader)


def epoch(accelerator, model, optimizer, loader):
    for x, y in loader:

        def closure(x=x, y=y):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            return loss

        optimizer.step(closure)


def test_accelerate_with_a_closure(task, by_hand):
    accelerator, model, optimizer, loader = prepared(task)
    epoch(accelerator, model, optimizer, loader)
    task.assert_same(model, by_hand([[part] for part in parts(task)]))


def test_accelerate_accumulates_in_contexts(task, by_hand):
    accelerator, model, optimizer, loader = prepared(task, accumulate=2)
    for x, y in loader:
        with accelerator.accumulate(model):
            with optimizer.optimizer.sampled_params(train=True, fresh=False):
                accelerator.backward(nn.functional.cross_entropy(model(x), y))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 0.05)
            optimizer.step()
            optimizer.zero_grad()
    task.assert_same(model, by_hand([parts(task)[:2], parts(task)[2:]], clip=0.05), atol=1e-5)


def test_accelerate_saves_and_loads_its_state(task, tmp_path):
    accelerator, model, optimizer, loader = prepared(task)
    epoch(accelerator, model, optimizer, loader)
    accelerator.save_state(str(tmp_path))
    epoch(accelerator, model, optimizer, loader)
    whole = copy.deepcopy(model)
    accelerator.load_state(str(tmp_path))
    epoch(accelerator, model, optimizer, loader)
    task.assert_same(model, whole, atol=0)
