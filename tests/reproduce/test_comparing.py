from reproduce import STUDIES
from reproduce.scale import SMOKE
from reproduce.table import choose, read_table


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


def test_what_was_not_run_is_not_judged(tmp_path, smoke):
    study = STUDIES["cifar10-noisy"]
    table = read_table(smoke.out / "cifar10-noisy.csv")
    table = table[~table["method"].str.startswith("IVON")]
    verdicts = {claim.says: claim.verdict for claim in study.claims(table)}
    assert [v for says, v in verdicts.items() if says.startswith("SAM")] != ["not run"]
    assert {v for says, v in verdicts.items() if "IVON" in says} == {"not run"}
