"""The verb, from every source to the files."""

import csv
import inspect
import io
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score
from torch import Tensor, nn
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset

from bayesmooth.audit import Audit, audit, audit_network, audit_probabilities
from bayesmooth.audit.predictions import Predictions
from bayesmooth.audit.table import HARD, MISLABELLED
from bayesmooth.cli import main, make_parser
from bayesmooth.cli.audit import audit as audit_command
from bayesmooth.data import Columns, Labels, Source, corrupt, load
from bayesmooth.errors import InputError
from bayesmooth.models import MODELS
from bayesmooth.optim import IVON
from bayesmooth.posterior import Posterior
from bayesmooth.train import Recipe, train
from tests.audit.conftest import clouds

PETS = ("cat", "dog", "cow")


def errors(made: Audit) -> float:
    """Average precision of the ranking."""
    assert made.clean is not None
    return float(average_precision_score(made.given != made.clean, made.disagreement))


@pytest.fixture(scope="module")
def digits() -> Source:
    noisy, _ = corrupt(load("digits", "train"), "symmetric", rate=0.2, seed=0)
    return noisy.subset(torch.arange(500))


@pytest.mark.parametrize("leave_out", [True, False])
def test_wrong_labels_come_first(leave_out: bool) -> None:
    made = audit(clouds(), leave_out=leave_out, quiet=True)
    assert {row["id"] for row in made.top(6)} == {str(i) for i in range(6)}
    assert made.probabilities is not None
    np.testing.assert_allclose(made.probabilities.sum(1), 1, rtol=1e-5)
    chosen = np.take_along_axis(made.probabilities, made.suggested[:, None], 1).squeeze(1)
    np.testing.assert_array_equal(chosen, made.suggested_probability)
    assert made.counts["mislabelled"] + made.counts["hard"] == 6
    assert (made.suggested == made.clean).all()


def test_real_errors_are_found_from_pixels_and_ambiguity_does_not_find_them(digits: Source) -> None:
    made = audit(digits, quiet=True)
    assert errors(made) > 0.95
    assert made.clean is not None
    wrong = torch.from_numpy(made.given != made.clean)
    assert average_precision_score(wrong, made.ambiguity) < 0.5 * errors(made)


@pytest.mark.parametrize("kind", ["symmetric", "pairflip"])
def test_mislabelled_ones_are_wrong_at_least_as_often_as_hard_ones(kind: str) -> None:
    noisy, _ = corrupt(load("digits", "train"), kind, rate=0.2, seed=0)
    rows = noisy.batch(torch.arange(len(noisy))).flatten(1)
    made = audit(rows, noisy.labels.numbers, quiet=True)
    assert noisy.clean is not None
    wrong = (noisy.labels.numbers != noisy.clean).numpy()
    sure, hard = (wrong[made.quadrant == q] for q in (MISLABELLED, HARD))
    assert len(sure) > 100
    assert sure.mean() > 0.95
    assert len(hard) == 0 or sure.mean() >= hard.mean() - 0.02


@pytest.mark.parametrize("count", [600, 3000])
def test_the_labels_of_coin_flips_are_hard_and_seldom_called_mislabelled(count: int) -> None:
    """Coin flips are the third of the examples that lies between the two classes: their labels are tossed."""
    generator = torch.Generator().manual_seed(0)
    kind = torch.arange(count) % 3
    x = torch.randn(count, 2, generator=generator) + 6 * torch.eye(2)[kind.clamp_max(1)]
    x[kind == 2] = torch.randn(int((kind == 2).sum()), 2, generator=generator) + 3
    tossed = torch.randint(2, (count,), generator=generator)
    made = audit(x, torch.where(kind == 2, tossed, kind), quiet=True)
    flips = (kind == 2).numpy()
    against = made.contradicted & flips
    assert against.sum() > count / 15  # half of them are contradicted
    assert (made.quadrant[against] == HARD).mean() > 0.9  # the others lie at the edge of a class
    assert made.ambiguity[flips].mean() > 3 * made.ambiguity[~flips].mean()


@pytest.mark.filterwarnings("ignore:.* of the labels are contradicted")
@pytest.mark.parametrize("rate", [0.005, 0.05, 0.2, 0.5])
def test_at_least_so_many_labels_are_wrong(rate: float, noisy_clouds: Callable[..., Source]) -> None:
    examples = noisy_clouds(rate)
    summary = audit(examples, quiet=True).summary
    true = float((examples.labels.numbers != examples.clean).double().mean())
    assert 0.6 * true - 0.01 < summary["noise_rate_at_least"] <= true
    assert summary["noise_rate_words"].startswith("Errors that are always made the same way")


def test_where_labels_slip_to_one_class_the_label_itself_is_evidence() -> None:
    """A label that no other class is ever given is less likely wrong than the prediction alone says."""
    noisy, _ = corrupt(load("digits", "train"), "pairflip", rate=0.3, seed=0)
    made = audit(noisy, quiet=True)
    wrong = noisy.labels.numbers != noisy.clean
    without = Predictions(noisy.labels.numbers, torch.from_numpy(made.probabilities)).disagreement
    assert errors(made) > average_precision_score(wrong, without)
    assert made.contradicted.sum() == int((without > 0).sum())  # the prediction alone says how many


def test_where_most_labels_are_contradicted_the_input_is_what_is_wrong() -> None:
    p = np.full((60, 3), 0.2) + 0.4 * np.eye(3)[np.arange(60) % 3]
    made = audit_probabilities(p, (np.arange(60) + np.arange(60) // 20) % 3, quiet=True)
    assert made.summary["warning"].startswith("67% of the labels are contradicted")


def test_rows_and_labels_in_different_orders_tell_nothing_and_accuse_nobody() -> None:
    examples = clouds()
    assert audit(examples, quiet=True).summary["warning"] is None
    shuffled = examples.labels[torch.randperm(90, generator=torch.Generator().manual_seed(0))]
    with pytest.warns(UserWarning, match="Nothing can be told"):
        made = audit(examples.inputs, shuffled, quiet=True)
    assert made.headline.startswith("Nothing can be told")
    assert made.summary["warning"].startswith("Nothing can be told")
    assert made.summary["noise_rate_at_least"] is None
    assert not made.contradicted.any()
    assert (made.suggested == made.given).all()


@pytest.mark.parametrize("seed", range(4))
def test_few_rows_whose_wrong_labels_are_surely_contradicted_still_tell_something(seed) -> None:
    labels = torch.arange(40) % 2
    rows = 2.0 * labels[:, None] + torch.randn(40, 8, generator=torch.Generator().manual_seed(seed))
    labels[::13] ^= 1
    made = audit(rows, labels, quiet=True)
    assert made.summary["informative"]
    assert {row["id"] for row in made.top(4)} == {"0", "13", "26", "39"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Nothing can be told")
@pytest.mark.parametrize(("share", "dims"), [(0.5, 8), (0.5, 100), (0.1, 8), (0.1, 100)])
def test_pure_noise_accuses_nobody(share: float, dims: int) -> None:
    generator = torch.Generator().manual_seed(0)
    accused = 0
    for _ in range(15):
        x = torch.randn(100, dims, generator=generator)
        y = (torch.arange(100) < 100 * share).long()
        accused += audit(x, y, quiet=True).contradicted.any()
    assert accused <= 1


def test_a_faint_signal_in_the_embeddings_is_enough_to_tell() -> None:
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(400) % 2
    x = torch.randn(400, 50, generator=generator)
    x[:, 0] += 1.5 * y
    assert audit(x, y, quiet=True).contradicted.any()


@pytest.mark.parametrize("count", [60, pytest.param(5200, marks=pytest.mark.slow)])
def test_another_order_of_the_rows_is_the_same_audit(count: int, noisy_clouds: Callable[..., Source]) -> None:
    examples = noisy_clouds(0.2, count=count, apart=2.0)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    one, other = audit(examples, quiet=True), audit(examples.subset(order), quiet=True)
    np.testing.assert_array_equal(one.disagreement[order], other.disagreement)
    np.testing.assert_array_equal(one.suggested[order], other.suggested)
    np.testing.assert_allclose(one.findings.outlier_score[order], other.findings.outlier_score, rtol=1e-4)


def test_copies_in_two_classes_get_the_same_suggestion_and_do_not_swap() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(200) % 2
    x = 2.0 * labels[:, None] + torch.randn(200, 4, generator=generator)
    twice = torch.cat([x, x[:40]])
    given = torch.cat([labels, 1 - labels[:40]])  # the second copy has the other label
    made = audit(twice, given, quiet=True)
    np.testing.assert_array_equal(made.suggested[:40], made.suggested[200:])
    np.testing.assert_array_equal(made.probabilities[:40], made.probabilities[200:])
    assert (made.suggested[:40] == labels[:40].numpy()).mean() > 0.8


def test_equal_rows_of_a_table_of_categories_are_examples_of_their_own() -> None:
    """The label is the exclusive or of two columns: no line divides it, and only equal rows tell."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(2, (300, 2), generator=generator).float()
    true = (x[:, 0] != x[:, 1]).long()
    given = true.clone()
    given[:15] = 1 - given[:15]
    made = audit(x, given, quiet=True)
    assert set(made.order[:15].tolist()) == set(range(15))


def npz(path: Path, **changes: object) -> Path:
    examples = clouds()
    content = {"embeddings": examples.inputs, "labels": examples.labels.numbers} | changes
    np.savez(path, **{key: np.asarray(value) for key, value in content.items()})
    return path


def test_the_command_writes_a_report_and_prints_its_path_last(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, out = npz(tmp_path / "e.npz"), tmp_path / "out"
    assert main(["audit", str(table), "--out", str(out), "--quiet"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(out / "audit.html")
    decisions = tmp_path / "decisions.csv"
    row = next(csv.DictReader(io.StringIO((out / "audit.csv").read_text())))
    decisions.write_text(f"id,given,decision,new_label\n{row['id']},{row['given']},relabel,{row['suggested']}\n")
    fixed = tmp_path / "fixed.csv"
    arguments = ["clean", str(out / "audit.csv"), str(decisions), "--out", str(fixed)]
    assert main(arguments) == 0
    assert capsys.readouterr().out.splitlines()[0] == "1 of 90 labels changed"
    assert next(csv.DictReader(io.StringIO(fixed.read_text())))["given"] == row["suggested"]


def test_a_run_is_audited_from_its_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = Recipe.from_dict(
        {
            "data": {"name": "digits", "limit": 300},
            "corruption": {"name": "symmetric", "rate": 0.2},
            "model": {"name": "mlp", "hidden": [32]},
            "optimizer": {"name": "ivon", "lr": 0.1, "hess_init": 1.0, "beta2": 0.99},
            "schedule": {"name": "cosine"},
            "train": {"epochs": 30, "batch_size": 25},
        }
    )
    run, out = train(recipe, tmp_path / "run", quiet=True), tmp_path / "out"
    assert main(["audit", str(tmp_path / "run"), "--out", str(out), "--quiet"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(out / "audit.html")
    made = run.audit(quiet=True)
    with (out / "audit.csv").open(newline="") as file:
        assert [row["rank"] for row in csv.DictReader(file)] == [str(rank) for rank in made.columns()["rank"]]
    assert errors(made) > 0.8
    assert main(["audit", str(tmp_path / "run"), "--text", "review"]) == 2
    assert "--text: not for a run" in capsys.readouterr().err


def test_a_file_of_probabilities_alone_is_not_audited_as_embeddings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    examples = clouds()
    p = torch.nn.functional.one_hot(examples.clean, 3) * 0.7 + 0.1
    np.savez(tmp_path / "p.npz", pred_probs=p.numpy(), labels=examples.labels.numbers.numpy())
    command = ["audit", str(tmp_path / "p.npz"), "--out", str(tmp_path / "out"), "--quiet"]
    assert main(command) == 2
    said = capsys.readouterr().err
    assert "has predicted probabilities and no embeddings; audit them with --probabilities" in said
    assert main([*command, "--probabilities"]) == 0
    assert "6 mislabelled" in capsys.readouterr().out
    assert audit_probabilities(tmp_path / "p.npz", quiet=True).counts["mislabelled"] == 6


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"embeddings": np.full((90, 3), np.nan)}, "nan"),
        ({"labels": np.zeros(90, int)}, "two"),
        ({"labels": np.r_[np.zeros(89, int), 1]}, "at least two classes"),
        ({"embeddings": np.ones((90, 3))}, "all embeddings are the same"),
        ({"embeddings": np.full((90, 3), 1e30)}, "beyond ±1e+15"),
        ({"labels": np.arange(9) % 3}, "90"),
    ],
)
def test_bad_input_is_said_in_a_line_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, object], message: str
) -> None:
    table, out = npz(tmp_path / "e.npz", **changes), tmp_path / "out"
    assert main(["audit", str(table), "--out", str(out), "--quiet"]) == 2
    assert message in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        ([[1.0], [2.0]], {}, "no data"),
        (3, {}, "a int: no data"),
        ("nowhere.npz", {}, "no such file"),
        ("nowhere.npz", {"lable": "kind"}, "option='lable': must be .* did you mean 'label'"),
        ("nowhere.npz", {"features": "width"}, "must be a list of names"),
    ],
)
def test_arguments_that_make_no_audit_are_explained(data: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        audit(data, quiet=True, **options)


def test_every_option_is_on_the_command_line() -> None:
    parser = make_parser("audit", audit_command)
    names = {*inspect.signature(audit).parameters, *(field.name for field in fields(Columns))} - {"data", "columns"}
    assert names <= {action.dest for action in parser._actions}
    given = vars(parser.parse_args(["x.csv"]))
    assert not {name for name in names & set(given) if given[name]}


def make_data() -> tuple[torch.Tensor, np.ndarray, np.ndarray]:
    """Three clusters that touch, a fifth of the labels moved; the true labels last."""
    rng = np.random.default_rng(0)
    true = np.arange(300) % 3
    centres = np.array([[0, 0], [3, 0], [0, 3]])
    rows = centres[true] + rng.normal(size=(300, 2))
    given = np.where(rng.random(300) < 0.2, (true + 1) % 3, true)
    return torch.from_numpy(rows), given, true


def test_decided_labels_are_trusted_and_not_asked_again(tmp_path: Path) -> None:
    rows, given, true = make_data()
    first = audit(rows, given, class_names=PETS, quiet=True)
    decided = first.order[:40]
    how = ["keep," if given[i] == true[i] else f"relabel,{PETS[true[i]]}" for i in decided]
    lines = [f"{i},{PETS[given[i]]},{decision}\n" for i, decision in zip(decided, how, strict=True)]
    (tmp_path / "decisions.csv").write_text("id,given,decision,new_label\n" + "".join(lines))
    further = audit(rows, given, class_names=PETS, decisions=tmp_path / "decisions.csv", quiet=True)
    assert (further.given[decided] == true[decided]).all()
    assert not further.contradicted[decided].any()
    assert (further.disagreement[decided] == further.disagreement.min()).all()
    rest = np.setdiff1d(np.arange(300), decided)
    assert (further.given[rest] == given[rest]).all()
    assert further.review is not None
    np.testing.assert_array_equal(further.order[:260], rest[np.argsort(-further.review.chance[rest])])
    assert "40 labels are decided" in further.summary["notes"][-1]


def test_what_was_skipped_is_asked_again_and_a_stranger_is_refused(tmp_path: Path) -> None:
    rows, given, _ = make_data()
    path = tmp_path / "decisions.csv"
    path.write_text(f"id,given,decision,new_label\n7,{PETS[given[7]]},skip,\n")
    how = {"class_names": PETS, "quiet": True}
    again = audit(rows, given, decisions=path, **how)
    np.testing.assert_array_equal(again.order, audit(rows, given, **how).order)
    path.write_text("id,given,decision,new_label\n999,cat,keep,\n")
    with pytest.raises(InputError, match="999"):
        audit(rows, given, decisions=path, **how)


def trained(examples: Source) -> tuple[nn.Module, IVON]:
    model = MODELS["linear"](num_classes=3, input_shape=(3,), seed=0)
    optimizer = IVON(model.parameters(), lr=0.1, ess=90, hess_init=4.0, weight_decay=1e-2, seed=0)
    x, y = examples.batch(torch.arange(90)), examples.labels.numbers

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        return loss

    for _ in range(200):
        optimizer.step(closure)
    return model, optimizer


def posterior_of(model: nn.Module, std: float = 0.1) -> Posterior:
    mean = {name: p.detach().clone() for name, p in model.named_parameters()}
    return Posterior(mean, {name: torch.full_like(p, std) for name, p in mean.items()})


@pytest.mark.filterwarnings("ignore:a step moved the weights")  # it is a tiny model
def test_of_several_encoders_the_one_that_tells_most_of_the_labels_is_taken(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    texts = [f"{'good' if i % 2 else 'bad'} {i}" for i in range(60)]

    def blind(some: list[str]) -> Any:
        return generator.normal(size=(len(some), 2))

    def seeing(some: list[str]) -> Any:
        return generator.normal(size=(len(some), 2)) + [[5.0 * text.startswith("good"), 0] for text in some]

    labels = [i % 2 for i in range(60)]
    for several in ([blind, seeing], (seeing, blind)):
        notes = audit(texts, labels, encoder=several, quiet=True).summary["notes"]
        assert "texts encoded by seeing" in notes
        assert any(note.startswith("of several encoders") for note in notes)
    with pytest.raises(InputError, match="each example has one label"):
        audit(texts, [{"a"}] * 60, encoder=[blind, seeing])
    lines = ["label,text", *(f"{label},{text}" for label, text in zip(labels, texts, strict=True))]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    main(["audit", str(tmp_path / "t.csv"), "--text", "text", "--encoder", "plain,plain", "--out", str(tmp_path / "o")])
    assert "plain 0." in (tmp_path / "o" / "audit.json").read_text()


def test_three_lines_audit_a_users_own_model() -> None:
    examples = clouds()
    model, optimizer = trained(examples)
    loader = DataLoader(TensorDataset(examples.batch(torch.arange(90)), examples.labels.numbers), batch_size=32)
    made = audit_network(model, optimizer, loader, quiet=True)
    assert {row["id"] for row in made.top(6)} == {str(i) for i in range(6)}
    other = audit_network(model, optimizer.posterior(model), examples, leave_out=True, quiet=True)
    assert {row["id"] for row in other.top(6)} == {str(i) for i in range(6)}
    assert other.class_names == examples.class_names


def test_batches_in_another_order_than_the_data_are_refused() -> None:
    examples, model = clouds(), nn.Linear(3, 3)
    data = TensorDataset(examples.batch(torch.arange(90)), examples.labels.numbers)
    chosen = SubsetRandomSampler(range(90))
    for loader in (
        DataLoader(data, 32, shuffle=True),
        DataLoader(data, 32, sampler=chosen),
        DataLoader(data, batch_sampler=[[1, 0], [2, 3]]),
        DataLoader(data, None, sampler=chosen),
    ):
        with pytest.raises(InputError, match="a DataLoader with a"):
            audit_network(model, posterior_of(model), loader, quiet=True)


def test_a_posterior_of_another_model_is_refused() -> None:
    model = nn.Linear(3, 3)
    foreign = Posterior({"w": torch.zeros(2)}, {"w": torch.ones(2)})
    with pytest.raises(InputError, match="another model"):
        audit_network(model, foreign, clouds(), quiet=True)
    with pytest.raises(InputError, match="no posterior"):
        audit_network(model, torch.optim.SGD(model.parameters()), clouds(), quiet=True)


def test_labels_beyond_the_models_classes_are_refused() -> None:
    examples = clouds()
    batch = [(examples.batch(torch.arange(90)), examples.labels.numbers + 5)]
    model = nn.Linear(3, 3)
    with pytest.raises(InputError, match="must be from 0 to 2"):
        audit_network(model, posterior_of(model), batch, quiet=True)


def test_a_network_with_batch_norm_is_audited_with_the_statistics_of_the_weights_that_predict() -> None:
    """Stale running statistics, as training under samples leaves them, must not matter."""
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    posterior = posterior_of(model)
    inputs = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    examples = Source(inputs, Labels(torch.arange(60) % 3, ("a", "b", "c")))
    fresh = audit_network(model, posterior, examples, quiet=True).probabilities
    model[1].running_mean += 5.0
    stale = audit_network(model, posterior, examples, quiet=True).probabilities
    assert np.array_equal(fresh, stale)
    assert model[1].running_mean.mean() > 4  # and they are back afterwards
