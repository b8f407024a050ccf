"""New data are read as the training data were, and predicted by the weights that the run ended with."""

import numpy as np
import pytest
import torch

from bayesmooth.cli import main
from bayesmooth.errors import InputError
from bayesmooth.train import Recipe, Run, train

pandas = pytest.importorskip("pandas")
make_classification = pytest.importorskip("sklearn.datasets").make_classification

COUNT = 60


@pytest.fixture(scope="module")
def flowers(tmp_path_factory):
    """A table with gaps, cut in two, and a run on the first part, trained by the command."""
    folder, random = tmp_path_factory.mktemp("flowers"), np.random.default_rng(0)
    kind = random.integers(0, 2, COUNT)
    frame = pandas.DataFrame(
        {
            "width": 100 * kind + random.normal(0, 40, COUNT),
            "place": np.array(["marsh", "wood"])[kind ^ (random.random(COUNT) < 0.2)],
            "species": np.array(["iris", "rose"])[kind],
        }
    )
    frame.loc[::7, "width"] = np.nan
    frame[:40].to_csv(folder / "train.csv", index=False)
    frame[40:].drop(columns="species").to_csv(folder / "new.csv", index=False)
    line = ["train", str(folder / "train.csv"), "--label", "species", "--quiet"]
    settings = ["--set", "train.epochs=3", "--set", "evaluate.samples=4"]
    assert main([*line, *settings, "--out", str(folder / "run")]) == 0
    return folder


def test_wide_embeddings_get_a_linear_model_whose_prior_held_out_labels_choose(tmp_path):
    shape = {"n_informative": 20, "n_redundant": 0, "n_classes": 4, "n_clusters_per_class": 1}
    rows, labels = make_classification(3000, 384, **shape, class_sep=2, random_state=0)
    random = np.random.default_rng(0)
    given = (labels + (random.random(3000) < 0.2) * random.integers(1, 4, 3000)) % 4
    np.savez(tmp_path / "wide.npz", embeddings=rows[:1500], labels=given[:1500])
    line = ["train", str(tmp_path / "wide.npz"), "--quiet", "--set", "train.epochs=10"]
    assert main([*line, "--set", "evaluate.samples=1", "--out", str(tmp_path / "run")]) == 0
    run = Run.open(tmp_path / "run")
    assert list(run.recipe.model.options["hidden"]) == []
    assert run.recipe.optimizer.options["weight_decay"] > 0.01  # in the recipe, and so in its hash
    facts = run.data()
    inputs = (rows[1500:] - np.array(facts["mean"])) / np.array(facts["std"])
    shown = run.model().eval()(torch.from_numpy(inputs).float()).argmax(1).numpy()
    assert (shown == labels[1500:]).mean() > 0.85


def test_predict_writes_what_python_computes_from_the_filled_and_scaled_columns(flowers, capsys):
    out = flowers / "predictions.csv"
    assert main(["predict", str(flowers / "run"), str(flowers / "new.csv"), "--out", str(out)]) == 0
    assert "missing numbers count as the mean of their column" in capsys.readouterr().out
    known, new = (pandas.read_csv(flowers / f"{name}.csv") for name in ("train", "new"))
    width = known["width"].fillna(known["width"].mean())
    rows = np.stack(
        [
            (new["width"].fillna(known["width"].mean()) - width.mean()) / width.std(ddof=0),
            new["place"] == "marsh",
            new["place"] == "wood",
        ],
        axis=1,
    ).astype(np.float32)
    run = Run.open(flowers / "run")
    inputs, model = torch.from_numpy(rows), run.model()
    written = pandas.read_csv(out)
    expected = {"at_mean": model(inputs).softmax(-1), "averaged": run.posterior().predict(model, inputs, 4, seed=0)}
    for how, probabilities in expected.items():
        names = [["iris", "rose"][k] for k in probabilities.argmax(1)]
        assert written[how].tolist() == names
        found = torch.tensor(written[[f"{how}_iris", f"{how}_rose"]].to_numpy()).float()
        torch.testing.assert_close(found, probabilities.detach().float(), atol=2e-5, rtol=1e-4)
    assert written["id"].tolist() == list(range(20))


def test_one_row_is_read_like_many(flowers):
    run, new = Run.open(flowers / "run"), pandas.read_csv(flowers / "new.csv")
    every, one = run.predict(new), run.predict(new[3:4])
    torch.testing.assert_close(one.at_mean[0], every.at_mean[3])


def test_labels_in_new_data_are_not_read_and_an_unknown_category_is_none(flowers):
    run, new = Run.open(flowers / "run"), pandas.read_csv(flowers / "new.csv")
    found = run.predict(new.assign(species="unheard of", place="sea"))
    assert found.examples.inputs[:, 1:].eq(0).all()
    assert any("'sea' in 'place'" in str(note) for note in found.examples.notes)


def test_new_data_with_other_columns_are_refused_and_stray_words_are_findings(flowers):
    run = Run.open(flowers / "run")
    with pytest.raises(InputError, match="table: no column 'width', only place"):
        run.predict(pandas.DataFrame({"place": ["wood"]}))
    found = run.predict(pandas.DataFrame({"width": ["wide", "3"], "place": "wood"}))
    assert [note.ids for note in found.examples.problems] == [("0",)]


def test_pictures_without_folders_of_classes_are_predicted(tmp_path):
    image = pytest.importorskip("PIL.Image")
    colours = {"blue": (20, 20, 220), "red": (220, 20, 20)}
    for name, colour in colours.items():
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(6):
            shade = tuple(min(255, c + number) for c in colour)
            image.new("RGB", (32, 32), shade).save(tmp_path / "photos" / name / f"{number}.png")
    (tmp_path / "new").mkdir()
    image.new("RGB", (48, 48), (200, 30, 30)).save(tmp_path / "new" / "x.png")
    settings = ["train.epochs=20", 'data.encoder="plain"', "data.validation=0"]
    path = f'data.path="{(tmp_path / "photos").as_posix()}"'
    run = train(Recipe.load("source", [path, *settings]), tmp_path / "run", quiet=True)
    columns = run.predict(tmp_path / "new").columns()
    assert (columns["id"], columns["at_mean"]) == (["x.png"], ["red"])
    pixels = {"data": {"name": "folder", "path": str(tmp_path / "photos"), "size": 16}}
    pixels |= {"model": {"name": "linear"}, "train": {"epochs": 1}, "evaluate": {"test": False}}
    run = train(Recipe.from_dict(pixels), tmp_path / "pixels", quiet=True)
    found = run.predict(tmp_path / "new")
    assert found.at_mean.shape == (1, 2)
    assert found.averaged is None  # SGD has no posterior


def test_arrays_are_standardised_as_in_training_and_need_no_labels(tmp_path):
    rows = np.random.default_rng(0).normal(5, 3, (40, 4)).astype(np.float32)
    np.savez(tmp_path / "train.npz", embeddings=rows, labels=(rows[:, 0] > 5).astype(int))
    np.savez(tmp_path / "new.npz", embeddings=rows[:5])
    np.save(tmp_path / "new.npy", rows[:5])
    np.save(tmp_path / "wide.npy", np.zeros((5, 7), np.float32))
    path = f'data.path="{(tmp_path / "train.npz").as_posix()}"'
    run = train(Recipe.load("source", [path, "train.epochs=1"]), tmp_path / "run", quiet=True)
    one, other = run.predict(tmp_path / "new.npz"), run.predict(tmp_path / "new.npy")
    assert torch.equal(one.at_mean, other.at_mean)
    scaled = torch.from_numpy((rows[:5] - rows.mean(0)) / rows.std(0))
    torch.testing.assert_close(one.at_mean, run.model()(scaled).softmax(-1).detach())
    with pytest.raises(InputError, match=r"shape \(7,\); the run was trained on \(4,\)"):
        run.predict(tmp_path / "wide.npy")


def test_a_run_on_a_public_set_and_texts_by_tf_idf_are_refused(tiny, tmp_path):
    run = train(tiny(train={"epochs": 1}), tmp_path / "run", quiet=True)
    with pytest.raises(InputError, match="a run on digits, which is no file of yours"):
        run.predict(tmp_path)
    rows = "".join(f"{'good' if i % 2 else 'bad'} thing {i},{i % 2}\n" for i in range(20))
    (tmp_path / "texts.csv").write_text(f"text,label\n{rows}")
    settings = [f'data.path="{(tmp_path / "texts.csv").as_posix()}"', 'data.encoder="plain"']
    with pytest.raises(InputError, match="TF-IDF encodes texts by the words of all of them"):
        train(Recipe.load("source", settings), tmp_path / "texts", quiet=True)
