"""The table behind a figure: what its rows are, what is chosen from them, and the verdicts."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayesmooth.train import Run
from reproduce import STUDIES
from reproduce.study import SCALES
from reproduce.table import EARLY, ahead, choose, comparable, find_leads, make_table, read_table, write_table

SMOKE = SCALES["smoke"]

accuracies = st.lists(st.floats(0, 1), min_size=2, max_size=5)


def rows(noise, method, by_strength, validation=None):
    """A made-up table: strength → accuracies of the seeds."""
    return [
        {
            "data": "cifar10",
            "noise": noise,
            "method": method,
            "strength": strength,
            "seed": seed,
            "accuracy": accuracy,
            "validation": (validation or by_strength)[strength][seed],
        }
        for strength, values in by_strength.items()
        for seed, accuracy in enumerate(values)
    ]


def made_up(ivon, ls, sam, noise="κ = 0.4"):
    return rows(noise, "IVON", {None: ivon}) + rows(noise, "LS", ls) + rows(noise, "SAM", sam)


def verdicts(study, table):
    """Verdict by the words of a claim, without what we ask or allow."""
    claims = STUDIES[study].claims(make_table(table))
    return {claim.says.partition(" (we ")[0]: claim.verdict for claim in claims}


CLEAR = ([0.9, 0.91], [0.1, 0.11], "κ = 0.1")  # IVON, and the best of LS and of SAM


@pytest.mark.parametrize(
    ("rows_by_noise", "verdict"),
    [
        ([CLEAR], "reproduced"),
        ([([0.60, 0.70], [0.58, 0.68], "κ = 0.2")], "direction only"),  # within the spread of the seeds
        ([CLEAR, ([0.4, 0.5], [0.42, 0.5], "κ = 0.2")], "direction only"),  # behind, but not clearly
        ([CLEAR, ([0.4, 0.41], [0.5, 0.51], "κ = 0.2")], "not reproduced"),
    ],
)
def test_a_clear_lead_under_every_noise_reproduces_and_a_clear_loss_under_one_does_not(rows_by_noise, verdict):
    table = [row for ivon, other, noise in rows_by_noise for row in made_up(ivon, {0.1: other}, {0.1: other}, noise)]
    found = verdicts("data-dependent", table)
    assert found["κ = .4: IVON is about 50 points above the best LS"] == "not run"
    assert {v for says, v in found.items() if "outperforms" in says} == {verdict}


@pytest.mark.parametrize(("ivon", "verdict"), [(0.7, "reproduced"), (0.15, "not reproduced")])
def test_where_the_baselines_collapse_half_of_the_papers_gain_is_asked(ivon, verdict):
    found = verdicts("data-dependent", made_up([ivon, ivon], {0.0: [0.1, 0.11]}, {0.0: [0.1, 0.11]}))
    assert found["κ = .4: IVON is about 50 points above the best LS"] == verdict
    assert found["κ = .4 and .5: LS and SAM only reach around 10 %"] == "reproduced"


def test_one_lucky_seed_is_not_the_best_strength():
    table = rows("n", "LS", {0.1: [0.5, 0.4], 0.5: [0.6, 0.2], 0.9: [0.7]})
    assert choose(make_table(table), "accuracy").values == [0.5, 0.4]


def test_the_choice_by_noisy_validation_does_not_see_the_test_accuracy():
    test = {0.1: [0.9, 0.9], 0.5: [0.5, 0.5]}
    validation = {0.1: [0.3, 0.3], 0.5: [0.4, 0.4]}
    table = make_table(rows("κ = 0.4", "LS", test, validation))
    assert choose(table, "accuracy").strength == 0.1
    assert choose(table).values == [0.5, 0.5]


def test_seeds_that_the_test_set_gave_to_some_strengths_do_not_choose_by_validation():
    test = {0.1: [0.9, 0.9, 0.9], 0.5: [0.5]}
    validation = {0.1: [0.3, 0.6, 0.6], 0.5: [0.4]}
    assert choose(make_table(rows("κ = 0.4", "LS", test, validation))).strength == 0.5


def test_without_a_validation_split_there_is_no_choice_by_it():
    table = [{**row, "validation": None} for row in rows("a", "LS", {0.1: [0.9]})]
    assert choose(make_table(table)).values == []


def test_noisy_validation_chooses_between_the_mean_and_the_average():
    table = rows("κ = 0.4", "IVON, h₀", {0.1: [0.5, 0.6], 0.9: [0.4, 0.4]})
    for at_mean, expected in ((0.4, [0.5, 0.6]), (0.7, [0.3, 0.3])):
        own = [{**row, "at_mean": 0.3, "validation_at_mean": at_mean} for row in table]
        assert choose(make_table(own)).values == expected
    own[0]["validation_at_mean"] = None  # a stored row that does not know it
    assert choose(make_table(own)).prediction == "accuracy"


def test_the_sentences_of_the_paper_are_judged_by_ivon_as_validation_chose_it():
    table = made_up([0.3, 0.3], {0.1: [0.4, 0.41]}, {0.1: [0.4, 0.41]})
    tuned = rows("κ = 0.4", "IVON, h₀", {0.1: [0.5, 0.51], 0.9: [0.2, 0.21]})
    says = "IVON outperforms LS at its best α on every noise"
    assert verdicts("data-dependent", table)[says] == "not reproduced"
    assert verdicts("data-dependent", table + tuned)[says] == "reproduced"


def test_a_best_value_at_the_end_of_its_grid_is_told():
    table = made_up([0.5], {0.0: [0.3], 0.5: [0.2], 0.9: [0.4]}, {0.1: [0.3], 0.2: [0.4], 0.5: [0.3]})
    first, second, *_ = STUDIES["data-dependent"].claims(make_table(table))
    assert "at α = 0.9 (end of the grid)" in first.measured
    assert "at ρ = 0.2" in second.measured
    assert "end of the grid" not in second.measured


def test_on_clothing_ivon_is_comparable_to_sam_and_another_set_says_that_it_stands_in():
    table = made_up([0.5, 0.5], {0.1: [0.4, 0.4]}, {0.1: [0.505, 0.505]}, "natural noise")
    found = [c for c in STUDIES["natural-noise"].claims(make_table(table)) if not c.own]
    assert not any("outperforms SAM" in claim.says for claim in found)
    assert all("CIFAR-10N stands in for Clothing1M" in claim.says for claim in found)


def test_sam_is_sensitive_if_a_wrong_radius_costs_five_points():
    for worst, verdict in ((0.40, "reproduced"), (0.48, "not reproduced")):
        table = made_up([0.5, 0.5], {0.1: [0.4, 0.4]}, {0.1: [0.5, 0.5], 0.5: [worst, worst]}, "n")
        assert verdicts("cifar10-noisy", table)["SAM is sensitive to ρ"] == verdict


def test_a_radius_beyond_those_of_the_paper_does_not_make_sam_sensitive():
    table = made_up([0.5, 0.5], {0.1: [0.4, 0.4]}, {0.1: [0.5, 0.5], 0.5: [0.48, 0.48], 2.0: [0.1, 0.1]}, "n")
    assert verdicts("cifar10-noisy", table)["SAM is sensitive to ρ"] == "not reproduced"


def test_a_first_hessian_of_a_hundredth_is_outside_of_the_claim():
    says = "accuracy is consistent: over h₀ > .05 it varies by up to 10 %"
    table = rows("n", "learned Σ", {0.01: [0.1], 0.1: [0.5], 0.9: [0.45]})
    assert verdicts("hessian-init", table)[says] == "reproduced"
    table = rows("n", "learned Σ", {0.1: [0.2], 0.9: [0.17]})  # three points are much of twenty
    assert verdicts("hessian-init", table)[says] == "not reproduced"


def test_ivon_must_depend_on_its_first_hessian_less_than_sam_on_its_radius():
    says = "it is less sensitive to h₀ > .05 than SAM is to ρ"
    ours = rows("n", "learned Σ", {0.1: [0.5, 0.5], 0.9: [0.4, 0.4]})
    for worst, verdict in ((0.3, "reproduced"), (0.45, "not reproduced")):
        table = ours + rows("n", "SAM", {0.0: [0.5, 0.5], 0.5: [worst, worst]})
        assert verdicts("hessian-init", table)[says] == verdict
    assert verdicts("hessian-init", ours)[says] == "not run"


def test_what_a_wrong_strength_costs_is_told_with_its_spread():
    table = made_up([0.5, 0.5], {0.1: [0.4, 0.4]}, {0.1: [0.5, 0.54], 0.5: [0.3, 0.3]}, "n")
    claims = STUDIES["cifar10-noisy"].claims(make_table(table))
    claim = next(claim for claim in claims if "sensitive" in claim.says)
    assert claim.measured == "from the best to the worst ρ: n: 22.0 ± 2.8 points (2 seeds)"


def test_learned_must_beat_the_best_fixed_covariance():
    table = rows("n", "learned Σ", {0.1: [0.5, 0.51], 0.9: [0.4, 0.41]})
    table += rows("n", "fixed Σ", {0.1: [0.3, 0.31], 0.9: [0.6, 0.61]})
    assert set(verdicts("fixed-covariance", table).values()) == {"not reproduced"}


@pytest.mark.parametrize("name", [name for name in STUDIES if name != "sigmoid-noise"])
def test_an_empty_table_is_not_run(name):
    assert set(verdicts(name, []).values()) == {"not run"}


@given(accuracies, accuracies)
def test_both_sides_cannot_be_ahead(ours, others):
    won = [ahead([pair]) != "not reproduced" for pair in ((ours, others), (others, ours))]
    assert sum(won) <= 1


def two_sixes(regular, atypical):
    return [
        {"kind": kind, "method": method, "seed": seed, "label": 0, "noise_size": size}
        for seed in (0, 1)
        for method, sizes in (("LS", (0.1, 0.1)), ("IVON", (regular, atypical)))
        for kind, size in zip(("regular", "atypical"), sizes, strict=True)
    ]


def sorted_digits(distances):
    return [{"seed": 0, "ivon_noise": 0.001 * 2**i, "distance": distance} for i, distance in enumerate(distances)]


def labels_by_class(ivon, ols):
    pairs = enumerate(zip(ivon, ols, strict=True))
    return [{"data": "d", "seed": 0, "class": "a", "other": str(i), "IVON": x, "OLS": y} for i, (x, y) in pairs]


@pytest.mark.parametrize(
    ("study", "holds", "fails"),
    [
        ("illustration", two_sixes(0.01, 0.2), two_sixes(0.2, 0.01)),
        ("mnist-noise", sorted_digits(range(20)), sorted_digits(range(20, 0, -1))),
        ("ols-comparison", labels_by_class([0.3, 0.2, 0.1], [0.03, 0.02, 0.01]), labels_by_class([0.01, 0.02], [1, 0])),
    ],
)
def test_the_sentences_about_label_noise_hold_for_such_noise_and_fail_for_its_opposite(study, holds, fails):
    assert {*verdicts(study, holds).values()} == {"reproduced"}
    assert {*verdicts(study, fails).values()} == {"not reproduced"}


@given(accuracies, accuracies)
def test_who_is_ahead_is_comparable_and_has_gained(ours, others):
    if ahead([(ours, others)]) == "reproduced":
        assert comparable([(ours, others)]) == "reproduced"
        assert ahead([(ours, others)], gain=find_leads([(ours, others)])[0][0]) == "reproduced"


@given(accuracies, accuracies)
def test_a_difference_turns_its_sign_with_the_sides(ours, others):
    (forward, error), (backward, same) = find_leads([(ours, others), (others, ours)])
    assert forward == pytest.approx(-backward)
    assert error == pytest.approx(same)


def test_stopping_early_takes_the_epoch_that_noisy_validation_labels_like_best(smoke):
    cell = next(c for c in STUDIES["natural-noise"].cells(SMOKE) if c.method == EARLY)
    records = Run.open(smoke.runs / cell.recipe.title).metrics()
    best = max(records, key=lambda record: record["validation.accuracy"])
    table = read_table(smoke.out / "natural-noise.csv")
    row = table[table["method"] == EARLY].iloc[0]
    assert row["accuracy"] == pytest.approx(best["test.accuracy"], rel=1e-5)
    assert len(records) > 1


def test_averaged_predictions_are_what_counts_for_ivon(smoke):
    cell = STUDIES["natural-noise"].cells(SMOKE)[0]
    report = Run.open(smoke.runs / cell.recipe.title).report()
    row = read_table(smoke.out / "natural-noise.csv").iloc[0]
    assert row["method"] == "IVON"
    assert row["nll"] == pytest.approx(report["averaged.nll"], rel=1e-5)
    assert row["nll"] != pytest.approx(report["test.nll"], rel=1e-5)
    assert row["at_mean"] == pytest.approx(report["test.accuracy"], rel=1e-5)
    assert row["validation"] == pytest.approx(report["averaged.validation.accuracy"], rel=1e-5)
    assert row["validation_at_mean"] == pytest.approx(report["validation.accuracy"], rel=1e-5)


def test_a_table_survives_its_csv(tmp_path):
    row = {"method": "LS", "strength": 0.1, "validation": None, "noise": "1", "seed": 0}
    write_table(make_table([{**row, "accuracy": 0.123456789}]), tmp_path / "t.csv")
    again = read_table(tmp_path / "t.csv").to_dict("records")[0]
    assert math.isnan(again.pop("validation"))
    assert again == {"method": "LS", "strength": 0.1, "noise": "1", "seed": 0, "accuracy": 0.123457}


def test_what_the_grids_chose_gets_more_seeds(smoke):
    table = read_table(smoke.out / "natural-noise.csv")
    for method in ("LS", "SAM"):
        own = table[table["method"] == method]
        for by in ("accuracy", "validation"):
            assert len(choose(own, by).values) == len(SMOKE.seeds + SMOKE.more_seeds)
        assert own["seed"].nunique() == 2


def test_sgd_has_as_many_seeds_as_early_stopping_though_another_rate_is_better(smoke):
    study, key = STUDIES["natural-noise"], ("LS", 0.0)
    table = read_table(smoke.out / "natural-noise.csv")
    plain = (table["method"] == key[0]) & (table["strength"] == key[1])
    table.loc[plain, ["accuracy", "validation"]] = 0.0
    labels = [cell.labels for cell in study.more(SMOKE, table)]
    seeds = [each["seed"] for each in labels if (each["method"], each["strength"]) == key]
    assert seeds == list(SMOKE.more_seeds)


def test_what_was_not_run_is_not_judged(smoke):
    table = read_table(smoke.out / "cifar10-noisy.csv")
    claims = STUDIES["cifar10-noisy"].claims(table[~table["method"].str.startswith("IVON")])
    assert {claim.verdict == "not run" for claim in claims if "IVON" in claim.says} == {True}
