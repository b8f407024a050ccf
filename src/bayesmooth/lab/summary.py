"""A record of figures as people read it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

COLUMNS = {
    "train.loss": "loss",
    "train.accuracy": "accuracy",
    "validation.accuracy": "validation",
    "test.accuracy": "test",
    "averaged.accuracy": "averaged",
    "memorised": "memorised",
}
SHARES = (
    "accuracy",
    "validation",
    "test",
    "averaged",
    "memorised",
)  # in per cent; others as they are


def shown(numbers: Mapping[str, float]) -> dict[str, str]:
    """Shares in per cent, other figures with three digits.

    >>> shown({"loss": 0.51234, "accuracy": 0.8123})
    {'loss': '0.512', 'accuracy': '81.2 %'}
    """
    return {
        name: f"{100 * value:.1f} %" if name in SHARES else f"{value:.3f}"
        for name, value in numbers.items()
    }


def summary(record: Mapping[str, Any], epochs: int) -> str:
    """An epoch in a line.

    >>> summary({"epoch": 3, "train.loss": 0.5, "test.accuracy": 0.931}, epochs=20)
    'epoch  3/20  loss 0.500  test 93.1 %'
    """
    numbers = shown({COLUMNS[key]: record[key] for key in COLUMNS if key in record})
    words = [f"{name} {value}" for name, value in numbers.items()]
    return "  ".join([f"epoch {record['epoch']:{len(str(epochs))}}/{epochs}", *words])


def final(record: Mapping[str, Any], path: Path) -> str:
    """The figures of a finished run: at the mean of the weights, and averaged over the posterior where there is one.

    >>> print(final({"test.accuracy": 0.9, "averaged.accuracy": 0.91, "test.nll": 0.3, "memorised": 0.1}, Path("r")))
    r
      test                      mean  averaged
      accuracy                90.0 %    91.0 %
      nll                      0.300
      memorised               10.0 %
    """
    kinds = {"mean": "test.", "averaged": "averaged."}
    kinds = {
        kind: start for kind, start in kinds.items() if any(key.startswith(start) for key in record)
    }
    starts = tuple(kinds.values())
    names = dict.fromkeys(key.partition(".")[2] for key in record if key.startswith(starts))
    lines = [str(path), _row("test", *kinds)]
    lines += [_row(name, *(_cell(record, start + name) for start in starts)) for name in names]
    lines += [
        _row(name, _cell(record, name))
        for name in ("memorised", "validation.accuracy")
        if name in record
    ]
    return "\n".join(lines)


def _cell(record: Mapping[str, Any], key: str) -> str:
    name = key.rpartition(".")[2]
    return shown({name: record[key]})[name] if key in record else ""


def _row(name: str, *cells: str) -> str:
    return f"  {name:20}" + "".join(f"{cell:>10}" for cell in cells).rstrip()
