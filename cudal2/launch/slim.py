"""Cubins without the device variables that their code does not read, which are most of what a load takes.

Where functions are device functions by default, NVRTC makes a variable of every constant of every header: 961 of them
in a kernel whose code is 10 KB of 150. The driver looks each up and writes its address into constant bank 4, from which
code would read it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

# ELF-64 (System V ABI, "Sections" and "Symbol Table").
_SECTION = np.dtype(
    {
        "names": ["name", "type", "flags", "addr", "offset", "size", "link", "info", "align", "entry"],
        "formats": ["<u4", "<u4", "<u8", "<u8", "<u8", "<u8", "<u4", "<u4", "<u8", "<u8"],
    }
)
_SYMBOL = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"), ("size", "<u8")]
)
_RELOCATION = np.dtype([("offset", "<u8"), ("type", "<u4"), ("symbol", "<u4"), ("addend", "<i8")])
_HEADER_AT, _COUNT_AT, _NAMES_AT = 40, 60, 62
_RELA, _SYMTAB = 4, 2
_LOCAL_OBJECT = 1
_TABLE = ".nv.constant4"
_VARIABLES = (".nv.global", ".nv.global.init")
#: In the 16 bytes of an instruction of sm_70 to sm_90: where one operand is a constant, its bank.
_FORM_SHIFT, _FORM_MASK, _CONSTANT_FORMS = 9, 7, (3, 5)
_BANK_SHIFT, _BANK_MASK, _ADDRESS_BANK = 54, 31, 4


def without_unread_variables(image: bytes) -> bytes:
    """The same code; an image that reads a variable's address, or is no such cubin, as it is.

    Nothing moves: symbols of variables become empty ones, and the list of addresses to be written loses its length.
    """
    if image[:5] != b"\x7fELF\x02":
        return image
    data = bytearray(image)
    at = int.from_bytes(data[_HEADER_AT : _HEADER_AT + 8], "little")
    count = int.from_bytes(data[_COUNT_AT : _COUNT_AT + 2], "little")
    sections = np.frombuffer(data, _SECTION, count, at)
    names = _names(data, sections, int.from_bytes(data[_NAMES_AT : _NAMES_AT + 2], "little"))
    addresses = f".rela{_TABLE}"
    if addresses not in names or any(
        _reads_addresses(data, row) for name, row in zip(names, sections, strict=True) if name.startswith(".text")
    ):
        return image
    (symtab,) = sections[sections["type"] == _SYMTAB]
    symbols = _rows(data, symtab, _SYMBOL)
    variables = [names.index(name) for name in _VARIABLES if name in names]
    unread = (symbols["info"] == _LOCAL_OBJECT) & np.isin(symbols["section"], variables)
    for name, row in zip(names, sections, strict=True):
        if row["type"] == _RELA and name != addresses and unread[_rows(data, row, _RELOCATION)["symbol"]].any():
            return image
    symbols[unread] = np.zeros((), _SYMBOL)
    sections["size"][names.index(addresses)] = 0
    return bytes(data)


def _names(data: bytearray, sections: NDArray[Any], table: int) -> list[str]:
    start = int(sections["offset"][table])
    starts = [start + int(name) for name in sections["name"]]
    return [data[first : data.index(0, first)].decode() for first in starts]


def _rows(data: bytearray, section: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    return np.frombuffer(data, dtype, int(section["size"]) // dtype.itemsize, int(section["offset"]))


def _reads_addresses(data: bytearray, section: Any) -> bool:
    """Whether an instruction has an operand in the bank of addresses."""
    words = _rows(data, section, np.dtype("<u8"))[::2]
    constant = np.isin((words >> _FORM_SHIFT) & _FORM_MASK, _CONSTANT_FORMS)
    return bool((constant & ((words >> _BANK_SHIFT) & _BANK_MASK == _ADDRESS_BANK)).any())
