from collections.abc import Callable

import numpy as np
import pytest

from bayesmooth.audit.findings import Findings
from bayesmooth.audit.table import KINDS, Audit
from bayesmooth.errors import InputError

Make = Callable[..., Audit]


def test_the_worst_come_first_and_ties_stay_in_the_order_of_the_data(made_up: Make) -> None:
    made = made_up(4, disagreement=np.array([1.0, 3.0, 3.0, 2.0]))
    assert made.order.tolist() == [1, 2, 3, 0]
    assert made.rank.tolist() == [4, 1, 2, 3]


@pytest.mark.parametrize(
    ("wrong", "count", "least", "sentence"),
    [
        (0, 300, 0.0, "None of the 300 labels looks wrong."),
        (1, 300, 0.0, "1 of 300 labels looks wrong (0.3\u00a0%)."),
        (1000, 2000, 0.0, "1,000 of 2,000 labels look wrong (50.0\u00a0%)."),
        (90, 300, 0.123, "At least 12.3\u00a0% of the labels are wrong, and 90 of 300 look wrong."),
    ],
)
def test_headline_says_what_holds(made_up: Make, wrong: int, count: int, least: float, sentence: str) -> None:
    given = np.arange(count) % 4
    suggested = np.where(np.arange(count) < wrong, (given + 1) % 4, given)
    made = made_up(count, suggested=suggested, summary={"noise_rate_at_least": least})
    assert made.headline == sentence


def test_frame_has_one_row_per_example_with_names_and_the_data(of_texts: Make) -> None:
    pytest.importorskip("pandas", reason="needs pandas, the extra data")
    made = of_texts()
    frame = made.to_frame()
    assert len(frame) == 300
    assert frame["given"][5] == "class 1"  # the audit's own column, not the data's of that name
    assert (frame["text"][5], frame["row"][5]) == ("text 5 <b>", "7")
    assert frame["rank"].min() == 1


def test_selections_are_those_of_the_report_and_worst_first(made_up: Make) -> None:
    pytest.importorskip("pandas", reason="needs pandas, the extra data")
    first, other = np.full(300, -1), np.full(300, "", object)
    first[[10, 14]] = 10
    other[60] = "test-9"
    found = Findings(
        rare_class=np.arange(300) == 7,
        duplicate_of=first,
        conflicting=np.arange(300) == 14,
        outlier_score=np.where(np.arange(300) == 50, 2.0, 0.5),
        in_other_split=other,
        label_in_other_split=other,
    )
    made = made_up(findings=found)
    chosen = {kind: set(made.select(kind)["id"]) for kind in KINDS[5:]}
    assert chosen == {
        "duplicates": {"10", "14"}, "conflicts": {"14"}, "outliers": {"50"}, "rare": {"7"}, "leaks": {"60"},
    }  # fmt: skip
    assert len(made.mislabelled) == made.counts["mislabelled"] > 0
    assert made.mislabelled["rank"].is_monotonic_increasing
    assert sum(len(made.select(kind)) for kind in KINDS[1:5]) == 300
    assert len(made_up().select("duplicates")) == 0  # nobody looked
    with pytest.raises(InputError, match="kind='wrong': must be one of contradicted, clear"):
        made.select("wrong")
