"""TensorBoard as a listener of a run."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bayesmooth.optional import require


@contextmanager
def tensorboard(directory: Path) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """A listener for `train` that writes every figure of every epoch; `tensorboard --logdir runs` shows them."""
    require("tensorboard", extra="tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(directory))

    def listen(record: Mapping[str, Any]) -> None:
        for name, value in record.items():
            if name != "epoch":
                writer.add_scalar(name.replace(".", "/"), value, record["epoch"])

    try:
        yield listen
    finally:
        writer.close()
