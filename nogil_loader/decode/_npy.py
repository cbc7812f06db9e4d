"""The npy header, parsed fast, and the array it describes as a view of the data.

Guarantees
- Format versions 1, 2 and 3, any dtype that isn't pickled; C and Fortran order, 0-d, empty.
- The array is a view wherever its elements are aligned in memory, else a copy; it never
  reaches beyond the data, whatever the header says.

The format is NumPy enhancement proposal 1: a magic string, two version bytes, the header's
length (2 bytes in version 1, else 4), and a Python literal with the three keys below.
"""

from __future__ import annotations

import ast
import math
import re
from typing import NamedTuple, TypeAlias, cast

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from nogil_loader.decode._input import Buffer
from nogil_loader.decode.errors import DecodeError, TruncatedError, UnsupportedError

MAGIC = b"\x93NUMPY"
_LONGEST_HEADER = 1 << 16

# The form in which NumPy itself writes a header for plain dtypes; the rest takes literal_eval.
_USUAL = re.compile(
    rb"\{'descr': '([<>|=]?[a-zA-Z]\d+)', 'fortran_order': (False|True), "
    rb"'shape': \(((?:\d{1,18}(?:, ?|(?=\))))*)\), \}\s*"
)


_Descr: TypeAlias = "list[tuple[str, str]]"  # as NumPy's stub has it; it takes any descr


class Header(NamedTuple):
    """What stands before the elements."""

    dtype: np.dtype[np.generic]
    fortran: bool
    shape: tuple[int, ...]
    start: int
    """Where the elements begin, in bytes from the magic string."""


def header_of(data: Buffer) -> Header:
    """Parse the header; raises a ``DecodeError`` that says what is wrong with it."""
    version = data[6] if len(data) > 6 else 1
    if version == 1:
        begin, length = 10, int.from_bytes(data[8:10], "little")
    elif version in (2, 3):
        begin, length = 12, int.from_bytes(data[8:12], "little")
    else:
        raise UnsupportedError(f"npy format version {version}, which this reader doesn't know")
    if length > _LONGEST_HEADER:
        raise DecodeError(f"an npy header of {length} bytes, more than {_LONGEST_HEADER}")
    text = bytes(data[begin : begin + length])
    if len(text) < length or begin > len(data):
        raise TruncatedError("the data ends inside the npy header")
    usual = _USUAL.fullmatch(text)
    try:
        if usual:
            sides = [int(digits) for digits in usual[3].split(b",") if digits.strip()]
            dtype = np.dtype(usual[1].decode())
            return Header(dtype, usual[2] == b"True", tuple(sides), begin + length)
        # Versions before 3 are latin-1; Python 2 wrote long integers with an L.
        literal = text.decode("utf-8" if version == 3 else "latin-1").strip()
        fields = ast.literal_eval(re.sub(r"(?<=\d)L(?=[,)])", "", literal))
        descr, fortran, shape = fields["descr"], fields["fortran_order"], fields["shape"]
        dtype = cast("np.dtype[np.generic]", npy_format.descr_to_dtype(cast("_Descr", descr)))
    except (ValueError, TypeError, KeyError, SyntaxError, RecursionError, MemoryError) as error:
        raise DecodeError(f"an npy header that can't be read ({error}): {text[:80]!r}") from error
    if not isinstance(shape, tuple) or not all(type(n) is int and n >= 0 for n in shape):
        raise DecodeError(f"an npy header whose shape is {shape!r}")
    if not isinstance(fortran, bool) or dtype.subdtype is not None:
        raise DecodeError(f"an npy header with fortran_order={fortran!r}, descr={descr!r}")
    return Header(dtype, fortran, shape, begin + length)


def array_of(data: Buffer, header: Header, native: bool) -> NDArray[np.generic]:
    """The elements behind the header, in native byte order if asked for."""
    dtype, fortran, shape, start = header
    needed, there = math.prod(shape) * dtype.itemsize, len(data) - start
    if needed > there:
        raise TruncatedError(
            f"{shape} elements of {dtype} are {needed} bytes; the data has {there} of them"
        )
    try:
        array: NDArray[np.generic] = np.ndarray(
            shape, dtype, data, start if needed else 0, order="F" if fortran else "C"
        )
    except (ValueError, TypeError, OverflowError) as error:
        raise DecodeError(f"an array of shape {shape} and dtype {dtype}: {error}") from error
    # The flag isnative overlooks fields that are arrays themselves.
    if native and (not dtype.isnative or dtype.names is not None):
        array = array.astype(dtype.newbyteorder("="), copy=False)
    return array if array.flags.aligned else array.copy(order="K")
