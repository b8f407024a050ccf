import math
from functools import partial

import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, SubsetRandomSampler, TensorDataset, WeightedRandomSampler

from bayesmooth import InputError, fit
from bayesmooth.fitting import choose, heldout, trial

datasets = pytest.importorskip("datasets")
X = torch.randn(400, 10, generator=torch.Generator().manual_seed(0))
CLEAN = (X @ torch.randn(10, 3, generator=torch.Generator().manual_seed(1))).argmax(1)
WRONG = torch.rand(400, generator=torch.Generator().manual_seed(2)) < 0.3
Y = torch.where(WRONG, (CLEAN + 1) % 3, CLEAN)


def net():
    return nn.Sequential(nn.Linear(10, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3))


def run(data=(X, Y), epochs=8, **how):
    return fit(net, data, epochs, **{"batch_size": 20, "quiet": True} | how)


@pytest.mark.parametrize("falls", [True, False])
def test_six_settings_begin_and_the_best_learns_given_and_predicted_labels(monkeypatch, falls):
    monkeypatch.setattr(choose, "overfits", lambda plan, best: falls)
    found = run(grid=choose.IVON_GRID, epochs=16)
    trained = {
        kind: sorted(row["trained"] for row in found.table if row["labels"] == kind) for kind in ("given", "predicted")
    }
    assert trained["given"] == [0.25] * 4 + [0.5, 0.5 if falls else 1.0]
    assert trained["predicted"] == ([0.5, 0.5] if falls else [0.5])
    assert found.setting == {name: found.table[-1][name] for name in ("lr", "noise")}
    found.model.eval()
    assert float((found.model(X).argmax(1) == CLEAN).double().mean()) > 0.7
    assert str(found).count("\n") == len(found.table)
    assert str(found).count("← chosen") == 1
    averaged = found.posterior.predict(found.model, [X], 8)
    assert float((averaged.argmax(1) == CLEAN).double().mean()) > 0.7


def test_the_cost_is_said_before_and_is_three_runs(capsys):
    run(epochs=2, quiet=False)
    said = "6 settings for 25% of 2 epochs, the best go on: 3.0 × one run, 96 steps"
    assert said in capsys.readouterr().out


def weights(found):
    return torch.cat([p.detach().flatten() for p in found.model.parameters()])


def test_a_fit_that_was_stopped_goes_on_and_trains_nothing_twice(tmp_path, monkeypatch):
    calls, train, limit = [], trial.train_part, math.inf

    def stop(plan, model, loss, optimizer, average, rates, part, tell):
        if len(calls) == limit:
            raise KeyboardInterrupt
        calls.append(part)
        train(plan, model, loss, optimizer, average, rates, part, tell)

    monkeypatch.setattr(trial, "train_part", stop)
    whole, count = run(), len(calls)
    for limit in (count + 15, 2 * count - 10):  # noqa: B007 — among settings, and predicted labels
        with pytest.raises(KeyboardInterrupt):
            run(folder=tmp_path)
    limit = math.inf
    again = run(folder=tmp_path)
    assert torch.equal(weights(again), weights(whole))
    assert again.table == whole.table
    assert torch.equal(weights(run(folder=tmp_path)), weights(whole))
    assert len(calls) == 2 * count
    with pytest.raises(InputError, match="holds a fit with other held-out labels"):  # they were corrected since
        run((X, CLEAN), folder=tmp_path)
    with pytest.raises(InputError, match="holds a fit with other seed"):
        run(folder=tmp_path, seed=1)


def test_a_disk_that_fills_up_is_an_error_and_the_fit_goes_on(tmp_path, limit_files):
    whole = run(epochs=1)
    for size in (10_000, 3_000):  # too small for a checkpoint; for predicted labels
        limit_files(size)
        with pytest.raises(InputError, match="cannot be written: File too large"):
            run(epochs=1, folder=tmp_path)
        limit_files(None)
        assert run(epochs=1, folder=tmp_path).table == whole.table
        for path in [*tmp_path.glob("*.labels"), *tmp_path.glob("*-predicted.pt")]:
            path.unlink()


def test_a_folder_holds_one_fit_in_any_process_and_what_is_damaged_is_named(tmp_path):
    def again(net=net, loss=nn.functional.cross_entropy):
        grid = [{"lr": 0.1, "noise": 1.0, "loss": partial(lambda z, y: nn.functional.cross_entropy(z, y))}]  # a new one
        return fit(net, (X, Y), 1, loss=loss, grid=grid, folder=tmp_path / "fit", quiet=True)

    assert again().table == again().table
    with pytest.raises(InputError, match="holds a fit with other network; give another folder"):
        again(lambda: nn.Linear(10, 3))
    with pytest.raises(InputError, match="holds a fit with other loss"):
        again(loss=nn.CrossEntropyLoss(label_smoothing=0.1))
    (tmp_path / "fit" / "0.pt").write_bytes(b"half")
    with pytest.raises(InputError, match=r"0\.pt: not a checkpoint .*delete the folder"):
        again()
    with pytest.raises(InputError, match=r"fit\.json: cannot be written"):
        run(folder=tmp_path / "fit" / "0.pt")


def test_processes_find_the_same():
    jobs = fit(lambda: net(), (X, Y), 8, batch_size=20, jobs=2, quiet=True)  # what cannot be pickled will do
    assert torch.allclose(weights(jobs), weights(run()), atol=1e-5)


def test_the_callers_generator_is_left_alone():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    run(epochs=1)
    assert torch.equal(torch.rand(1), expected)


def test_any_optimizer_and_grid_will_do_and_one_setting_is_one_run():
    found = run(optimizer=lambda weights, lr: torch.optim.AdamW([p for _, p in weights], lr), grid=[{"lr": 0.01}])
    assert found.posterior is None
    assert {"lr": 0.01, "trained": 1.0}.items() <= found.table[0].items()


class Rows:
    """Items as dictionaries, with labels under one name or the other; no Dataset of torch, but like one."""

    def __init__(self, name="labels"):
        self.name = name

    def __len__(self):
        return 400

    def __getitem__(self, index):
        return {"input": X[index], self.name: int(Y[index])}


def rename(items):
    """Collate as Hugging Face does: "label" becomes "labels", which must be numbers."""
    labels = torch.tensor([item["label"] for item in items])
    return {"input": torch.stack([item["input"] for item in items]), "labels": labels}


def read(batch):
    return (batch["input"], batch["labels"]) if isinstance(batch, dict) else batch


@pytest.mark.parametrize(
    "data", [(X, Y), TensorDataset(X, Y), Rows(), DataLoader(Rows("label"), 20, shuffle=True, collate_fn=rename)]
)
def test_every_example_gets_its_own_new_label(data):
    loader, _ = heldout.split_data(data, None, 0.2, 20, 0)
    inputs = torch.cat([read(batch)[0] for batch in heldout.read_in_order(loader)])
    for batch in heldout.replace_labels(loader, inputs[:, :3].softmax(1)):
        rows, labels = read(batch)
        torch.testing.assert_close(labels, rows[:, :3].softmax(1))


@pytest.mark.parametrize(
    "change", [lambda items: items[1:], lambda items: sorted(items, key=lambda i: float(i["input"][0]))]
)
def test_labels_stay_as_given_where_a_collate_fn_sorts_examples_or_leaves_some_out(change):
    loader = DataLoader(Rows("label"), 20, collate_fn=lambda items: rename(change(items)))
    assert {row["labels"] for row in run(loader, epochs=1).table} == {"given"}


class Stream(IterableDataset):
    """Examples, and nobody knows how many."""

    def __iter__(self):
        return zip(X, Y, strict=True)


PAIRS = [(x, int(y)) for x, y in zip(X, Y, strict=True)]
DICTS = [{"input": x, "labels": y} for x, y in PAIRS]


HUGGING = datasets.Dataset.from_dict({"input": X.tolist(), "label": Y.tolist()}).with_format("torch")


@pytest.mark.parametrize("data", [PAIRS, DICTS, Rows(), Rows("label"), HUGGING])
def test_whatever_a_loader_can_read_is_trained_and_validated_on(data):
    same = TensorDataset(X, Y)
    assert run(data, epochs=1, validation=data).table == run(same, epochs=1, validation=same).table


@pytest.mark.parametrize(
    ("data", "named"),
    [
        ([1, 2], "list"),
        ([], "list"),
        (X, "torch.Tensor"),
        ((X.numpy(), Y.numpy()), "tuple"),
        ({"train": PAIRS}, "dict"),
        (pd.DataFrame({"x": [1.0, 2.0], "label": [0, 1]}), "pandas.+DataFrame"),
        (HUGGING.to_iterable_dataset(), "datasets.*IterableDataset"),
        (datasets.DatasetDict(train=HUGGING), "datasets.dataset_dict.DatasetDict"),
    ],
)
def test_what_cannot_be_read_is_named(data, named):
    with pytest.raises(InputError, match=f"data is a {named}: must be a DataLoader, "):
        run(data)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"data": (X, Y[:-1])}, "400 inputs and 399 labels: give one label"),
        ({"data": (X, nn.functional.one_hot(Y).float())}, r"labels of torch.float32: must be integer .*argmax\(1\)"),
        ({"data": (X, Y[:, None])}, r"labels of shape \(80, 1\)"),
        ({"data": (X, torch.where(WRONG, -100, Y))}, "label -100: must be in 0…2; drop ignored examples"),
        ({"data": PAIRS[:1]}, "0 examples are left for training"),
        ({"data": DataLoader(Stream(), 20), "validation": (X, Y)}, "DataLoader without a length"),
        ({"epochs": math.nan}, "epochs=nan: must be > 0"),
        ({"batch_size": 0}, "batch_size=0: must be in"),
        ({"grid": ()}, r"grid=\(\): no setting"),
        ({"held_back": [-1]}, "held_back: places must be .* from 0 to 399"),
        ({"validation": []}, "no held-out labels to choose by"),
    ],
)
def test_what_could_not_be_learned_is_refused_before_anything_is_trained(monkeypatch, given, says):
    monkeypatch.setattr(trial, "train_part", None)
    with pytest.raises(InputError, match=says):
        run(**given)


@pytest.mark.parametrize("kind", [torch.int32, torch.uint8])
def test_labels_of_every_width_and_weights_of_float64_are_learned(kind):
    assert run((X, Y.to(kind)), epochs=1).table == run(epochs=1).table
    double = fit(lambda: nn.Linear(10, 3).double(), (X.double(), Y), 2, quiet=True)
    assert {row["labels"] for row in double.table} == {"given", "predicted"}


def test_places_may_be_a_tensor_and_validation_may_come_as_a_stream_of_batches():
    assert run(epochs=1, held_back=torch.arange(80)).table == run(epochs=1, held_back=range(80)).table
    given, held = (X[80:], Y[80:]), (X[:80], Y[:80])
    assert run(given, epochs=1, validation=iter([held])).table == run(given, epochs=1, validation=[held]).table


def test_labels_stay_as_given_where_that_is_asked_for_or_the_loss_is_ones_own():
    assert {row["labels"] for row in run(teach=False, epochs=1).table} == {"given"}
    own = nn.CrossEntropyLoss(label_smoothing=0.1)
    found = run(loss=own, epochs=1)
    assert {row["labels"] for row in found.table} == {"given"}
    assert sorted(line.split()[0] for line in str(found).splitlines()[1:]) == ["AdamW"] * 3 + ["IVON"] * 3


def test_wrong_labels_are_predicted_right_and_those_held_back_are_learned_in_the_end(tmp_path):
    run(folder=tmp_path, epochs=16)
    order = torch.randperm(400, generator=torch.Generator().manual_seed(0))
    every = torch.cat([order[80:], order[:80]])  # those held back come last

    def share(labels, rows):
        return float((labels == CLEAN[rows]).double().mean())

    sizes = set()
    for path in tmp_path.glob("*.labels"):
        predicted = torch.load(path, weights_only=True).argmax(1)
        sizes.add(len(predicted))
        assert share(predicted[:320], every[:320]) > 0.75 > share(Y[every[:320]], every[:320])
        if len(predicted) == 400:
            assert share(predicted[320:], every[320:]) >= share(Y[every[320:]], every[320:])
    assert 400 in sizes


def read_labels(folder, held):
    """What is learned in place of the given labels where the held-out ones are these."""
    run((X[80:], Y[80:]), epochs=4, validation=(X[:80], held), folder=folder)
    return {p.name: torch.load(p, weights_only=True) for p in folder.glob("*.labels")}


def test_validation_of_ones_own_is_never_learned(tmp_path, monkeypatch):
    monkeypatch.setattr(trial, "look", lambda plan, model: (0.5, 0.5, 1.0))  # held-out labels choose nothing
    monkeypatch.setattr(choose, "audit_labels", lambda *_: None)  # nor how much the audit counts
    first = read_labels(tmp_path / "1", Y[:80])
    second = read_labels(tmp_path / "2", Y[:80].flip(0))
    assert first.keys() == second.keys() != set()
    for name, labels in first.items():
        assert len(labels) == 320
        assert torch.equal(labels.argmax(1), second[name].argmax(1))  # η and τ may differ


def test_loaders_are_split_as_they_are():
    data = TensorDataset(X, Y)
    part = DataLoader(data, 20, sampler=SubsetRandomSampler(range(100)))
    train, held = heldout.split_data(part, None, 0.2, 64, 0)
    assert (len(train.dataset), len(held.dataset), train.batch_size) == (80, 20, 20)
    assert max(train.dataset.indices + held.dataset.indices) < 100
    weighted = DataLoader(data, 20, sampler=WeightedRandomSampler(torch.ones(400), 400))
    with pytest.raises(InputError, match="a WeightedRandomSampler, which cannot be split"):
        run(weighted)
    run(weighted, epochs=1, validation=[(X[:50], Y[:50])])


def test_no_part_of_a_loader_has_a_batch_of_one_which_batch_norm_cannot_do_with():
    loader = DataLoader(TensorDataset(X[:101], Y[:101]), 16)  # its own last batch has 5 examples, that of 81 has 1
    assert run(loader, epochs=1).table


def test_settings_that_would_share_a_network_are_refused():
    shared = net()
    with pytest.raises(InputError, match="make_model gives one network for all settings; make a new one"):
        fit(lambda: shared, (X, Y), 1, quiet=True)
    with pytest.raises(InputError, match="make_model gives one network"):
        fit(shared, (X, Y), 1, quiet=True)


def test_nothing_learned_is_said():
    torch.manual_seed(0)
    with pytest.warns(UserWarning, match="nothing is learned"):
        run((torch.zeros(600, 10), torch.arange(600) % 3), epochs=1)


def test_a_setting_that_diverges_is_passed_over_and_only_if_all_do_it_is_an_error():
    def burst(weights, lr):
        return torch.optim.SGD([p for _, p in weights], lr)

    assert run(epochs=4, optimizer=burst, grid=[{"lr": 0.1}, {"lr": 1e30}]).setting == {"lr": 0.1}
    with pytest.raises(InputError, match="diverged at every setting"):
        run(epochs=4, optimizer=burst, grid=[{"lr": 1e29}, {"lr": 1e30}])


def test_a_relative_step_that_diverges_does_not_end_the_choice():
    wide = torch.randn(400, 384, generator=torch.Generator().manual_seed(0))
    grid = [{"lr": 0.03, "noise": 1.0}, {"lr": 1e6, "noise": 1e6}]
    assert fit(lambda: nn.Linear(384, 3), (wide, Y), 4, batch_size=20, grid=grid, quiet=True).setting == grid[0]
