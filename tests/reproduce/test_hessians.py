from reproduce import STUDIES
from reproduce.scale import FULL


def test_a_fixed_covariance_has_a_beta2_of_one():
    for cell in STUDIES["fixed-covariance"].cells(FULL):
        fixed = cell.method == "fixed Σ"
        assert cell.recipe.optimizer.options["beta2"] == (1 if fixed else 1 - 1e-5)
        assert cell.recipe.optimizer.options["hess_init"] == cell.strength
