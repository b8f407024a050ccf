"""Read pickles from outside without running them.

CIFAR and CIFAR-N come as pickles. This interpreter knows the few opcodes that plain containers and
numpy arrays need; nothing is imported or called because a file says so, and what is allocated is
counted first. Any other opcode or global name is an error.
"""

import io
import math
import struct
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np

from bayesmooth.data.files import LIMIT, ZIP_ERRORS
from bayesmooth.errors import InputError

RECONSTRUCT, NDARRAY, DTYPE, ENCODE = "reconstruct", "ndarray", "dtype", "encode"
GLOBALS = {
    ("numpy.core.multiarray", "_reconstruct"): RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): RECONSTRUCT,
    ("numpy", "ndarray"): NDARRAY,
    ("numpy", "dtype"): DTYPE,
    ("_codecs", "encode"): ENCODE,
}
NUMBERS = {"b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8"}
TORCH_MAGIC = 0x1950A86A20F9469CFC6C  # opens a file of torch.save before the zip format


class _Global(str):
    """A name that GLOBALS admits; a str of a type that no pickle can make."""


class _Dtype:
    def __init__(self, code: str) -> None:
        self.code, self.order = code, "="


class _Array:
    value: np.ndarray[Any, Any] | None = None


def load_pickle(data: bytes, name: str) -> dict[str, Any]:
    """The dict that a pickle holds, of numbers, strings, containers of these, and numpy arrays."""
    return _as_dict(_Reader(data, name).load(), name)


def load_torch(data: bytes, name: str) -> dict[str, Any]:
    """The same from a file of torch.save, of either format."""
    if data[:2] == b"PK":
        return load_pickle(_zip_member(data, name), name)
    reader = _Reader(data, name)
    if reader.load() != TORCH_MAGIC:
        raise InputError(f"{name}: not a file of torch.save")
    reader.load()  # the protocol's version
    reader.load()  # the system it was written on
    return _as_dict(reader.load(), name)


def _zip_member(data: bytes, name: str) -> bytes:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            pickles = [
                entry for entry in archive.infolist() if entry.filename.endswith("/data.pkl")
            ]
            if len(pickles) != 1 or pickles[0].file_size > LIMIT:
                raise InputError(f"{name}: not a file of torch.save (no data.pkl of a sane size)")
            return archive.read(pickles[0])
    except InputError:
        raise
    except ZIP_ERRORS as error:
        raise InputError(f"{name}: damaged zip ({error}); bring it again") from None


def _as_dict(content: object, name: str) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise InputError(f"{name}: holds a {type(content).__name__}; a dict was expected")
    return {
        key: value.value if isinstance(value, _Array) else value for key, value in content.items()
    }


class _Reader:
    """A stack machine over the bytes; `load` runs to the next STOP."""

    def __init__(self, data: bytes, name: str) -> None:
        self.data, self.name, self.at = data, name, 0
        self.encoded = self.copied = 0  # bytes

    def load(self) -> object:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        begin = self.at
        try:
            while (code := self.take(1)[0]) != 0x2E:
                begin = self.at - 1
                if code not in OPCODES:
                    raise InputError(f"opcode {code:#x}; only arrays and plain containers are read")
                OPCODES[code](self)
            return self.stack.pop()
        except InputError as error:
            raise InputError(f"{self.name}, byte {begin}: {error}") from None
        except (AttributeError, LookupError, TypeError, ValueError, OverflowError):
            raise InputError(f"{self.name}, byte {begin}: not a pickle that can be read") from None

    def take(self, count: int) -> bytes:
        end = self.at + count
        if end > len(self.data):
            raise InputError("the file ends too early; bring it again")
        self.at, begin = end, self.at
        return self.data[begin:end]

    def number(self, form: str) -> int:
        return int(struct.unpack("<" + form, self.take(struct.calcsize(form)))[0])

    def line(self) -> str:
        end = self.data.index(b"\n", self.at)
        return self.take(end + 1 - self.at)[:-1].decode("ascii")

    def push(self, value: object) -> None:
        self.stack.append(value)

    def since_mark(self) -> list[Any]:
        mark = self.marks.pop()
        items = self.stack[mark:]
        del self.stack[mark:]
        return items

    def last(self, count: int) -> tuple[Any, ...]:
        if count > len(self.stack):
            raise IndexError
        items = tuple(self.stack[-count:])
        del self.stack[-count:]
        return items

    def append(self, items: list[Any]) -> None:
        if type(self.stack[-1]) is not list:
            raise TypeError
        self.stack[-1].extend(items)

    def set_items(self, items: list[Any]) -> None:
        if type(self.stack[-1]) is not dict:
            raise TypeError
        for key, value in zip(items[::2], items[1::2], strict=True):
            self.stack[-1][_text(key)] = value

    def find(self, module: str, name: str) -> None:
        place = _text(module), _text(name)
        if place not in GLOBALS:
            asked = ".".join(place)[:80]
            raise InputError(f"asks for {asked!r}; only arrays and plain containers are read")
        self.push(_Global(GLOBALS[place]))

    def reduce(self) -> None:
        function, arguments = self.last(2)
        if type(function) is not _Global or type(arguments) is not tuple:
            raise TypeError
        if function == RECONSTRUCT:
            self.push(_Array())
        elif function == DTYPE and _text(arguments[0]) in NUMBERS:
            self.push(_Dtype(_text(arguments[0])))
        elif function == ENCODE and arguments[1:] == ("latin1",):
            self.encoded = _limited(self.encoded + len(arguments[0]))
            self.push(arguments[0].encode("latin1"))
        else:
            raise InputError(f"{function} with unusual arguments")

    def build(self) -> None:
        target, state = self.stack[-2], self.stack.pop()
        if type(target) is _Dtype and _text(state[1]) in {"<", ">", "|", "="}:
            target.order = _text(state[1])
        elif type(target) is _Array:
            self.copied = _limited(self.copied + len(state[4]))  # many arrays may share their bytes
            target.value = _array(*state)
        else:
            raise TypeError


def _limited(size: int) -> int:
    if size > LIMIT:
        raise InputError(f"unpacks to more than {LIMIT >> 20} MB")
    return size


def _text(value: object) -> str:
    """A string, which Python 2 wrote as bytes; nothing else: nested tuples take forever to hash."""
    if not isinstance(value, str | bytes):
        raise TypeError
    return value.decode("latin1") if isinstance(value, bytes) else value


def _array(
    version: int, shape: tuple[int, ...], dtype: _Dtype, fortran: bool, raw: bytes
) -> np.ndarray[Any, Any]:
    if type(dtype) is not _Dtype or type(raw) is not bytes or type(shape) is not tuple:
        raise TypeError
    kind = np.dtype(dtype.order.replace("|", "=") + dtype.code)
    sane = len(shape) <= 4 and all(type(n) is int and 0 <= n <= LIMIT for n in shape)
    if not sane or len(raw) != math.prod(shape) * kind.itemsize:
        raise InputError(f"the shape of an array does not go with its {len(raw)} bytes")
    return np.frombuffer(raw, kind).reshape(shape, order="F" if fortran else "C").copy()


def _sized(form: str) -> Callable[[_Reader], None]:
    """Push the bytes whose length stands before them."""
    return lambda r: r.push(r.take(r.number(form)))


def _unicode(form: str) -> Callable[[_Reader], None]:
    return lambda r: r.push(r.take(r.number(form)).decode())


def _integer(form: str) -> Callable[[_Reader], None]:
    return lambda r: r.push(r.number(form))


def _memoize(form: str) -> Callable[[_Reader], None]:
    return lambda r: r.memo.__setitem__(r.number(form), r.stack[-1])


def _recall(form: str) -> Callable[[_Reader], None]:
    return lambda r: r.push(r.memo[r.number(form)])


OPCODES: dict[int, Callable[[_Reader], object]] = {
    ord(code): run
    for code, run in {
        "\x80": lambda r: r.take(1),  # PROTO
        "\x95": lambda r: r.take(8),  # FRAME
        "}": lambda r: r.push({}),
        "]": lambda r: r.push([]),
        ")": lambda r: r.push(()),
        "N": lambda r: r.push(None),
        "\x88": lambda r: r.push(True),
        "\x89": lambda r: r.push(False),
        "(": lambda r: r.marks.append(len(r.stack)),
        "t": lambda r: r.push(tuple(r.since_mark())),
        "\x85": lambda r: r.push(r.last(1)),
        "\x86": lambda r: r.push(r.last(2)),
        "\x87": lambda r: r.push(r.last(3)),
        "a": lambda r: r.append([r.stack.pop()]),
        "e": lambda r: r.append(r.since_mark()),
        "s": lambda r: r.set_items(list(r.last(2))),
        "u": lambda r: r.set_items(r.since_mark()),
        "K": _integer("B"),
        "M": _integer("H"),
        "J": _integer("i"),
        "\x8a": lambda r: r.push(int.from_bytes(r.take(r.number("B")), "little", signed=True)),
        "G": lambda r: r.push(struct.unpack(">d", r.take(8))[0]),
        "U": _sized("B"),
        "T": _sized("I"),
        "C": _sized("B"),
        "B": _sized("I"),
        "\x8c": _unicode("B"),
        "X": _unicode("I"),
        "q": _memoize("B"),
        "r": _memoize("I"),
        "\x94": lambda r: r.memo.__setitem__(len(r.memo), r.stack[-1]),
        "h": _recall("B"),
        "j": _recall("I"),
        "c": lambda r: r.find(r.line(), r.line()),
        "\x93": lambda r: r.find(*r.last(2)),
        "R": _Reader.reduce,
        "b": _Reader.build,
    }.items()
}
