"""fig:illustration: a regular and an atypical 6, and the label noise that LS and variational learning give them."""

from pathlib import Path

from bayesmooth.lab.studies.figures.noisy_examples import (
    ALPHA,
    keep_first_seed,
    list_ivon,
    measure_noises,
    own_kind_distance,
    read_picture,
    smoothing_noise,
    write_picture,
)
from bayesmooth.lab.studies.rows import Table, format_values, make_table
from bayesmooth.lab.studies.study import Finished, Study
from bayesmooth.lab.studies.style import COLOURS, figure, picture
from bayesmooth.lab.studies.verdict import Claim, holds

DIGIT = 6
KINDS = ("regular", "atypical")
NAMES = {"LS": f"LS, α = {ALPHA}", "IVON": "variational (IVON)"}


def measure_sixes(finished: Finished) -> Table:
    """The 6 that is nearest to its own kind and the one that is farthest: |ε| by class, for both methods."""
    rows = []
    for facts, examples, noise in measure_noises(finished):
        sixes = (examples.labels == DIGIT).nonzero().flatten()
        pixels = examples.inputs[sixes].float().flatten(1)
        distance = own_kind_distance(pixels, examples.labels[sixes])
        same = smoothing_noise(examples.num_classes, DIGIT)
        for kind, place in zip(KINDS, (distance.argmin(), distance.argmax()), strict=True):
            at = int(sixes[place])
            text = write_picture(examples.inputs[at : at + 1][0, 0])  # type: ignore[index]
            for method, noises in (("LS", same), ("IVON", noise.expected[at])):
                own = {**facts, "kind": kind, "id": at, "method": method}
                rows += [
                    {**own, "label": i, "noise_size": abs(value), "pixels": "" if i else text}
                    for i, value in enumerate(noises.tolist())
                ]
    return make_table(rows)


def draw(table: Table, out: Path) -> None:
    """The picture, then its noise by class as bars."""
    table = keep_first_seed(table)
    with figure(out, 2, 2, height=2.6, gridspec_kw={"width_ratios": [1, 3]}) as axes:
        for (image, bars), kind in zip(axes, KINDS, strict=True):
            rows = table[table["kind"] == kind]
            picture(image, read_picture(rows["pixels"].iloc[0]))
            image.set_ylabel(f"{kind} 6")
            for method, shift in (("LS", -0.2), ("IVON", 0.2)):
                own = rows[rows["method"] == method]
                style = {"color": COLOURS[method], "label": NAMES[method]}
                bars.bar(own["label"] + shift, own["noise_size"], 0.4, **style)
                bars.set_xticks(own["label"])
            bars.set(ylabel="label noise |ε|", ylim=(0, 1.1 * table["noise_size"].max()))
        axes[1][1].set_xlabel("class")
        axes[0][1].legend(loc="upper left")


def claims(table: Table) -> list[Claim]:
    """LS the same, variational more for the atypical one, whatever the seed."""
    if table.empty:
        return [Claim(SAYS, "nothing", "not run")]
    halves = table.groupby(["method", "kind", "seed"])["noise_size"].sum() / 2
    sums = {(m, kind): halves[m, kind].tolist() for m in table["method"].unique() for kind in KINDS}
    words = [
        f"{method}, {kind}: {format_values(values, '.4f')}"
        for (method, kind), values in sums.items()
    ]
    same = sums["LS", "regular"] == sums["LS", "atypical"]
    pairs = zip(sums["IVON", "atypical"], sums["IVON", "regular"], strict=True)
    parts = [same, *(atypical > regular for atypical, regular in pairs)]
    return [Claim(SAYS, f"½‖ε‖₁ {'; '.join(words)}", holds(parts))]


SAYS = "LS gives a regular and an atypical 6 the same noise, variational learning gives the atypical one more"

STUDY = Study(
    "illustration",
    "fig:illustration",
    "Two sixes",
    "a regular and an atypical 6: label noise of LS (the same) and of variational learning (different)",
    lambda scale: list_ivon(scale, "mnist"),
    draw,
    claims,
    measure_sixes,
)
