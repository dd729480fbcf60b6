"""What a source with CUDA-L2's entry tells about itself: the tile to pad to, and which forms of B it reads.

Its callers hand over B twice, as [k, n] and as columns. Only one lies in memory; the other is made in every call, and a
kernel that never looks at it must not pay for it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from cudal2.problem import Problem

TILE_NAMES = ("BM", "BN", "BK")
#: The tile as CUDA-L2's harness reads it out of a source, to pad to; other spellings are not padded there either.
_TILE = re.compile(r"^.*?\b(BM|BN|BK)\s*=\s*Int\s*<\s*(\d+)\s*>", re.MULTILINE)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_TENSOR = r"\s*torch\s*::\s*Tensor\s+"
_PARAMETERS = rf"\s*\({_TENSOR}\w+\s*,{_TENSOR}(\w+)\s*,{_TENSOR}(\w+)\s*,[^)]*\)\s*\{{"
#: What looks at a tensor's description and not at its elements.
_DESCRIBES = (
    r"\b{name}\s*\.\s*(?:sizes?|dim|numel|strides?|options|dtype|scalar_type|device|get_device|is_cuda|is_contiguous)\s*\("
    r"|\w*CHECK\w*\s*\(\s*{name}\b|\(\s*void\s*\)\s*{name}\b"
)


def tile_of(text: str) -> dict[str, int]:
    """Tile sizes by name; the last of each counts, and all three must be there."""
    found = {name: int(size) for name, size in _TILE.findall(text) if int(size)}
    return found if len(found) == len(TILE_NAMES) else {}


def workspace_bytes(problem: Problem, tile: Mapping[str, int]) -> int:
    """What padded copies of A, B and C and a transposed one of B take, fp16."""
    m, n, k = (
        math.ceil(size / tile.get(name, 1)) * tile.get(name, 1)
        for size, name in zip((problem.m, problem.n, problem.k), TILE_NAMES, strict=True)
    )
    return 2 * (m * k + 2 * n * k + m * n) + 4 * 256


def forms_read(text: str, entry: str) -> tuple[bool, bool]:
    """Whether the entry may read the elements of ``b``, and of ``b_col_major``.

    A form counts as read unless every mention of it in the entry's body is of its description; where the body is not
    found, both count. A wrong answer is a wrong result, which the checks see, never a better time.
    """
    plain = _COMMENT.sub(" ", text)
    found = re.search(re.escape(entry.rsplit("::", 1)[-1]) + _PARAMETERS, plain)
    if found is None:
        return True, True
    body = _body(plain, found.end())
    rows, columns = (_mentions(name, body) for name in found.groups())
    return rows, columns


def _body(text: str, start: int) -> str:
    """From behind an opening brace to the one that closes it."""
    depth = 1
    for at, character in enumerate(text[start:], start):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if not depth:
            return text[start:at]
    return text[start:]


def _mentions(name: str, body: str) -> bool:
    return re.search(rf"\b{name}\b", re.sub(_DESCRIBES.format(name=name), " ", body)) is not None
