"""Trainer and Accelerate come to the weights of a plain loop: accumulation, clipping, bf16, resumed runs."""

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bayesmooth import IVON, InputError

transformers = pytest.importorskip("transformers", reason="transformers is an extra")
accelerate = pytest.importorskip("accelerate", reason="accelerate is an extra")

from bayesmooth.integrations.huggingface import IVONCallback, fit_trainer  # noqa: E402

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


def make_trainer(task, folder, callback=None, model=None, optimizer=None, **settings):
    rows = [{"x": x, "labels": y} for x, y in zip(task.x, task.y, strict=True)]
    model = model or Classifier(task.net())
    optimizer = optimizer or IVON(model.parameters(), **task.settings)
    defaults = {
        "output_dir": str(folder),
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


@pytest.fixture
def trainer(task, tmp_path):
    return partial(make_trainer, task, tmp_path)


def test_trainer_is_the_plain_loop(task, trainer, by_hand):
    trained = trainer(num_train_epochs=2)
    trained.train()
    task.assert_same(trained.model.net, by_hand([[part] for part in task.parts() * 2]))


def test_micro_batches_share_a_sample_and_are_clipped_together(task, trainer, by_hand):
    trained = trainer(num_train_epochs=3, gradient_accumulation_steps=2, max_grad_norm=0.05)
    trained.train()
    steps = [task.parts()[:2], task.parts()[2:]] * 3
    task.assert_same(trained.model.net, by_hand(steps, clip=0.05), atol=1e-5)


def test_bf16_stays_near_the_plain_loop_and_is_evaluated_as_trained(task, trainer, by_hand):
    trained, dtypes = trainer(IVONCallback(samples=2), num_train_epochs=2, bf16=True), []
    trained.model.net.register_forward_hook(lambda *given: dtypes.append(given[-1].dtype))
    trained.train()
    plain = by_hand([[part] for part in task.parts() * 2])
    assert {p.dtype for p in trained.model.parameters()} == {torch.float32}
    assert task.distance(trained.model.net, plain) < 0.02
    before = len(dtypes)
    trained.evaluate()
    assert len(dtypes) > before
    assert set(dtypes) == {torch.bfloat16}


class Overflows(Classifier):
    """As with float16: the gradients of the second batch are infinite."""

    calls = 0

    def forward(self, x, labels=None):
        output = super().forward(x, labels)
        self.calls += self.training
        if self.calls == 2:
            output.loss = output.loss * float("inf")
        return output


def as_on_a_gpu(accelerator):
    """There fp16 makes a GradScaler; on the CPU Accelerate ignores fp16, and trains in float32."""
    assert accelerator.mixed_precision == "fp16"
    assert accelerator.scaler is None
    accelerator.native_amp = True
    accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)


@pytest.mark.parametrize("clip", [0.0, 0.05])
def test_fp16_stays_near_the_plain_loop_without_the_steps_that_overflow(task, trainer, by_hand, clip):
    model = Overflows(task.net())
    trained = trainer(model=model, num_train_epochs=2, max_grad_norm=clip, fp16=True)
    as_on_a_gpu(trained.accelerator)
    trained.train()
    assert trained.accelerator.scaler.get_scale() == 512.0
    steps = [[part] for part in task.parts() * 2]
    assert task.distance(model.net, by_hand(steps[:1] + steps[2:], clip=clip)) < 0.005
    assert task.distance(model.net, by_hand(steps, clip=clip)) > 0.02


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
    logged = [row["eval_averaged_nll"] for row in trained.state.log_history if "eval_averaged_nll" in row]
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
    mean = by_hand([task.parts()[:2]])
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


def test_held_out_labels_choose_for_a_trainer(task, tmp_path, capsys):
    rows = [{"x": x.tolist(), "label": int(y)} for x, y in zip(task.x, task.y, strict=True)]

    def collate(rows):  # names the labels, as DataCollatorWithPadding does
        labels = torch.tensor([row["label"] for row in rows])
        return {"x": torch.tensor([row["x"] for row in rows]), "labels": labels}

    args = {"use_cpu": True, "report_to": [], "num_train_epochs": 8, "remove_unused_columns": False}
    trainer = transformers.Trainer(
        model_init=lambda: Classifier(task.net()),
        args=transformers.TrainingArguments(str(tmp_path), **args),
        train_dataset=rows,
        eval_dataset=rows,
        data_collator=collate,
    )
    found = fit_trainer(trainer, quiet=True)
    assert {row["labels"] for row in found.table} == {"given", "predicted"}
    loss = nn.functional.cross_entropy(found.model.eval()(task.x).logits, task.y)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(float(loss), rel=1e-4)
    trainer.args.max_steps = 10  # of a Trainer it overrides the epochs
    fit_trainer(trainer, grid=[{"lr": 0.03, "noise": 1.0}])
    assert "one setting, 10 steps" in capsys.readouterr().out
    trainer.model_init = None
    with pytest.raises(InputError, match="no model_init"):
        fit_trainer(trainer)


def prepared(task, accumulate=1, **settings):
    accelerate.state.AcceleratorState._reset_state(True)
    accelerate.state.GradientState._reset_state()
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=accumulate, **settings)
    if settings.get("mixed_precision") == "fp16":
        as_on_a_gpu(accelerator)
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
    task.assert_same(model, by_hand([[part] for part in task.parts()]))


def epoch_in_contexts(accelerator, model, optimizer, loader, overflow=()):
    for number, (x, y) in enumerate(loader):
        with accelerator.accumulate(model):
            with optimizer.optimizer.sampled_params(train=True, fresh=False):
                loss = nn.functional.cross_entropy(model(x).float(), y)
                accelerator.backward(loss * (float("inf") if number in overflow else 1.0))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 0.05)
            optimizer.step()
            optimizer.zero_grad()


def test_accelerate_accumulates_in_contexts(task, by_hand):
    accelerator, model, optimizer, loader = prepared(task, accumulate=2)
    epoch_in_contexts(accelerator, model, optimizer, loader)
    task.assert_same(model, by_hand([task.parts()[:2], task.parts()[2:]], clip=0.05), atol=1e-5)


def test_accelerate_in_fp16_needs_contexts(task, by_hand):
    made = prepared(task, accumulate=2, mixed_precision="fp16")
    epoch_in_contexts(*made, overflow=[1])
    epoch_in_contexts(*made)
    accelerator, model, optimizer, loader = made
    assert accelerator.scaler.get_scale() == 512.0
    halves = [task.parts()[:2], task.parts()[2:]]
    assert task.distance(model, by_hand([halves[1], *halves], clip=0.05)) < 0.002
    assert task.distance(model, by_hand([*halves, *halves], clip=0.05)) > 0.01
    with pytest.raises(InputError, match="with a GradScaler"):
        epoch(accelerator, model, optimizer, [*loader][-1:])


def test_accelerate_saves_and_loads_its_state(task, tmp_path):
    accelerator, model, optimizer, loader = prepared(task)
    epoch(accelerator, model, optimizer, loader)
    accelerator.save_state(str(tmp_path))
    epoch(accelerator, model, optimizer, loader)
    whole = copy.deepcopy(model)
    accelerator.load_state(str(tmp_path))
    epoch(accelerator, model, optimizer, loader)
    task.assert_same(model, whole, atol=0)


@pytest.fixture(scope="module")
def ranks(two_processes):
    return two_processes("huggingface", [environment(rank) for rank in (0, 1)])


def environment(rank):
    """What torchrun tells its processes."""
    return {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}


@pytest.mark.slow
def test_two_processes_of_trainer_are_one_on_the_joined_batch(task, ranks, by_hand):
    # batches go to the processes in turn, and two of each make a step
    alone = by_hand([task.parts()] * 3, clip=0.05)
    for weights, _ in ranks:
        torch.testing.assert_close(weights, [*alone.parameters()], atol=1e-5, rtol=0)


@pytest.mark.slow
def test_two_processes_evaluate_every_row_once(task, ranks):
    for _, figures in ranks:
        nll = nn.functional.nll_loss(figures["predicted"].log(), task.y)
        assert figures["eval_averaged_nll"] == pytest.approx(float(nll), rel=1e-5)
        right = (figures["predicted"].argmax(1) == task.y).float().mean()
        assert figures["eval_averaged_accuracy"] == pytest.approx(float(right))


def test_beta2_follows_from_the_steps_that_the_trainer_has(task, trainer):
    model = Classifier(task.net())
    optimizer = IVON(model.parameters(), lr=0.01, ess=40, noise=1.0, seed=0)
    trainer(IVONCallback(), model, optimizer, num_train_epochs=3).train()
    assert (optimizer.steps, optimizer.param_groups[0]["beta2"]) == (12, 1 - 2 / 12)


def test_accuracy_at_chance_is_noticed(task, trainer, monkeypatch):
    monkeypatch.setattr("bayesmooth.optim.schedule.ENOUGH", 10)
    model = Classifier(task.net())
    trained = trainer(IVONCallback(samples=2), model, num_train_epochs=1)
    trained.train()
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
        p[task.y.bincount(minlength=len(p)).argmin()] = 1.0  # the last one is the bias of the head
    with pytest.warns(UserWarning, match="nothing is learned"):
        assert "eval_mean_accuracy" in trained.evaluate()
