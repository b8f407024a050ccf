from reproduce import STUDIES
from reproduce.scale import FULL, LAPTOP, SMOKE


def test_equal_places_share_a_run():
    cells = STUDIES["cifar10-noisy"].cells(LAPTOP)
    shared = [c for c in cells if c.strength == 0 and c.seed == 0]
    assert len(shared) == 6
    assert len({cell.recipe.hash for cell in shared}) == 3


def test_what_learns_from_its_past_has_one_in_time():
    for scale in (SMOKE, LAPTOP, FULL):
        for cell in STUDIES["strategies"].cells(scale):
            if cell.loss == "self-knowledge":
                assert cell.recipe.evaluate.every < cell.recipe.train.epochs
