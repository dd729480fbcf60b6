"""Cubins that lose the variables nothing reads: by hand, and of the compiler where there is one."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

from cudal2.build.compiler import compile_source
from cudal2.build.toolchain import Toolchain
from cudal2.codegen import render
from cudal2.launch import slim
from cudal2.launch.slim import without_unread_variables
from cudal2.space.config import Sm90WsConfig

SYMTAB, RELA, PROGBITS = 2, 4, 1
OBJECT, FUNCTION = 1, 18
#: MOV R1, c[0x0][0x28] and the same of bank 4, as nvdisasm writes them.
READS_PARAMETERS, READS_ADDRESSES = 0x00000A0000017A02, 0x01000A0000017A02


def cubin(instruction: int = READS_PARAMETERS, also_needs: int = 2) -> bytes:
    """Sections as NVRTC writes them: a function, symbol 2, and variables, symbols 1 and 3."""
    names = (
        b"\0.shstrtab\0.symtab\0.text.cudal2_gemm\0.nv.global.init\0.nv.global\0.rela.nv.constant4\0.rela.debug_frame\0"
    )
    symbols = np.zeros(4, slim._SYMBOL)
    symbols["name"], symbols["info"], symbols["section"] = [0, 5, 9, 13], [0, OBJECT, FUNCTION, OBJECT], [0, 4, 3, 5]
    relocations = np.zeros(2, slim._RELOCATION)
    relocations["symbol"] = [1, 3]
    other = np.zeros(1, slim._RELOCATION)
    other["symbol"] = also_needs
    parts = {
        ".shstrtab": (3, names), ".symtab": (SYMTAB, symbols.tobytes()),
        ".text.cudal2_gemm": (PROGBITS, struct.pack("<QQ", instruction, 0) * 3),
        ".nv.global.init": (PROGBITS, b"\1" * 4), ".nv.global": (8, b""),
        ".rela.nv.constant4": (RELA, relocations.tobytes()), ".rela.debug_frame": (RELA, other.tobytes()),
    }  # fmt: skip
    body, rows = bytearray(64), [(0,) * 10]
    for name, (kind, content) in parts.items():
        rows.append((names.index(name.encode() + b"\0"), kind, 0, 0, len(body), len(content), 0, 0, 8, 0))
        body += content + b"\0" * (-len(content) % 8)
    body[:5] = b"\x7fELF\2"
    struct.pack_into("<Q", body, 40, len(body))
    struct.pack_into("<HHH", body, 58, 64, len(rows), 1)
    return bytes(body) + np.array(rows, slim._SECTION).tobytes()


def sections_of(image: bytes) -> tuple[Any, list[str]]:
    at, count, names = (int.from_bytes(image[a:b], "little") for a, b in ((40, 48), (60, 62), (62, 64)))
    sections = np.frombuffer(image, slim._SECTION, count, at)
    return sections, slim._names(bytearray(image), sections, names)


def symbols_of(image: bytes) -> list[int]:
    start = image.index(struct.pack("<IBB", 9, FUNCTION, 0)) - 2 * slim._SYMBOL.itemsize
    return [int(info) for info in np.frombuffer(image, slim._SYMBOL, 4, start)["info"]]


def test_variables_that_no_instruction_reads_are_left_out_and_nothing_moves() -> None:
    image = cubin()
    slimmed = without_unread_variables(image)
    assert symbols_of(image) == [0, OBJECT, FUNCTION, OBJECT] and symbols_of(slimmed) == [0, 0, FUNCTION, 0]
    assert len(slimmed) == len(image) and without_unread_variables(slimmed) == slimmed
    (before, names), (after, _) = sections_of(image), sections_of(slimmed)
    assert [name for name, a, b in zip(names, before, after, strict=True) if a != b] == [".rela.nv.constant4"]
    assert after["size"][names.index(".rela.nv.constant4")] == 0


@pytest.mark.parametrize(
    "image",
    [
        cubin(READS_ADDRESSES),
        cubin(also_needs=3),
        cubin().replace(b".rela.nv.constant4", b".rela.nv.constant9"),
        b"PTX",
    ],
    ids=["reads an address", "another relocation", "no addresses", "no cubin"],
)
def test_an_image_that_needs_them_or_is_no_such_cubin_stays_as_it_is(image: bytes) -> None:
    assert without_unread_variables(image) == image


def test_a_kernel_of_ours_reads_no_variable_and_keeps_its_code() -> None:
    config = Sm90WsConfig(64, 64, 64, 2, "coop", 1, 1, 1, 1, "direct", 1)
    image = compile_source(render(config, "fp32", "tn"), Toolchain.detect()).cubin
    slimmed = without_unread_variables(image)
    before, after = (np.frombuffer(one, np.uint8) for one in (image, slimmed))
    changed = np.flatnonzero(before != after)
    sections, names = sections_of(image)
    code = sections[names.index(".text.cudal2_gemm")]
    assert len(slimmed) == len(image) and len(changed) > 900
    assert not ((changed >= code["offset"]) & (changed < code["offset"] + code["size"])).any()
    assert without_unread_variables(slimmed) == slimmed
