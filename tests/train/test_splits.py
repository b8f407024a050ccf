import pytest
import torch

from bayesmooth.errors import InputError
from bayesmooth.train import prepare


def test_the_seeds_of_the_data_and_of_the_noise_are_their_own(tiny):
    one, other = (prepare(tiny(train={"seed": seed})) for seed in (0, 1))
    assert torch.equal(one.train.labels.numbers, other.train.labels.numbers)
    assert one.train.ids == other.train.ids
    noise = {"name": "symmetric", "rate": 0.3, "seed": "run"}
    one, other = (prepare(tiny(train={"seed": seed}, corruption=noise)) for seed in (0, 1))
    assert one.train.ids == other.train.ids
    assert not torch.equal(one.train.labels.numbers, other.train.labels.numbers)
    moved = prepare(tiny(data={"seed": 1}))
    assert moved.train.ids != one.train.ids


def test_the_validation_split_is_as_noisy_as_the_training_set_and_the_test_set_is_clean(tiny):
    splits = prepare(tiny(data={"limit": 1000, "validation": 0.3}))
    assert not set(splits.train.ids) & set(splits.validation.ids)
    for part in (splits.train, splits.validation):
        assert float((part.labels.numbers != part.clean).float().mean()) == pytest.approx(
            0.3, abs=0.05
        )
    assert splits.test.clean is None
    assert (splits.wrong.labels.numbers != splits.wrong.clean).all()


def test_two_people_train_on_the_same_noise_through_the_noise_file(tiny, tmp_path):
    first = prepare(tiny())
    first.corruption.save(tmp_path / "noise.json")
    again = prepare(tiny(corruption={"name": "file", "path": str(tmp_path / "noise.json")}))
    assert torch.equal(first.train.labels.numbers, again.train.labels.numbers)
    with pytest.raises(InputError, match="are not those the noise was drawn"):
        prepare(
            tiny(
                data={"seed": 5}, corruption={"name": "file", "path": str(tmp_path / "noise.json")}
            )
        )


def test_clean_labels_leave_nothing_to_memorise(tiny):
    splits = prepare(tiny(corruption={"name": "none"}))
    assert splits.corruption is None
    assert splits.wrong is None


def test_more_examples_than_there_are_is_an_error(tiny):
    with pytest.raises(
        InputError, match=r"\[data\] limit = 9999: digits/train has 1438; 0 takes all"
    ):
        prepare(tiny(data={"limit": 9999}))


def test_a_run_on_a_table_keeps_the_statistics_of_its_training_rows(tiny, tmp_path):
    pytest.importorskip("pandas")
    rows = "".join(f"{i},{i % 2},{'ab'[i % 2]},{'test' if i > 7 else 'train'}\n" for i in range(12))
    (tmp_path / "t.csv").write_text(f"Unnamed: 0,x,label,split\n{rows}")
    table = {"name": "source", "path": str(tmp_path / "t.csv"), "limit": 0}
    recipe = tiny(data=table, model={"name": "mlp"}, corruption={"name": "none"})
    facts = prepare(recipe).facts()
    assert (facts["mean"], facts["std"]) == ([0.5], [0.5])
    assert "'Unnamed: 0' (row numbers)" in facts["notes"][1]
    assert "mean" not in prepare(tiny()).facts()
