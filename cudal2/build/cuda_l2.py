"""What a source with CUDA-L2's entry tells about itself: the tile to pad to, and which forms of B it reads.

Its callers hand over B twice, as [k, n] and as columns. Only one lies in memory; the other is made in every call, and a
kernel that never looks at it must not pay for it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from cudal2.problem import Layout, Problem

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


@dataclass(frozen=True)
class CudaL2Needs:
    """What has to be made in every call of such an entry.

    Attributes:
        tile: Sizes to pad to, by name; empty for none.
        reads_rows: Whether it may read the elements of ``b``.
        reads_columns: Whether it may read those of ``b_col_major``.
    """

    tile: Mapping[str, int]
    reads_rows: bool
    reads_columns: bool

    @classmethod
    def read(cls, text: str, entry: str) -> CudaL2Needs:
        """Out of its source."""
        return cls(tile_of(text), *forms_read(text, entry))

    def placeholders(self, layout: Layout) -> dict[str, str]:
        """Of ``cuda_l2_entry.cu.in``, for B stored as ``layout``."""
        flags = {"transposed": layout == "tn", "reads_rows": self.reads_rows, "reads_columns": self.reads_columns}
        return {
            **{name: "true" if value else "false" for name, value in flags.items()},
            **{f"tile_{name[-1].lower()}": str(self.tile.get(name, 1)) for name in TILE_NAMES},
        }

    def workspace_bytes(self, problem: Problem) -> int:
        """What padded copies of A, B and C and a transposed one of B take, fp16."""
        m, n, k = (
            math.ceil(size / self.tile.get(name, 1)) * self.tile.get(name, 1)
            for size, name in zip((problem.m, problem.n, problem.k), TILE_NAMES, strict=True)
        )
        return 2 * (m * k + 2 * n * k + m * n) + 4 * 256

    def detail(self, layout: Layout) -> str:
        """For records: what is timed with the kernel."""
        sizes = "x".join(str(self.tile[name]) for name in TILE_NAMES) if self.tile else "none"
        turns = self.reads_rows if layout == "tn" else self.reads_columns
        return f"cuda-l2 entry, padding to {sizes}{' and transposing B' if turns else ''} timed"


def tile_of(text: str) -> dict[str, int]:
    """Tile sizes by name; the last of each counts, and all three must be there."""
    found = {name: int(size) for name, size in _TILE.findall(text) if int(size)}
    return found if len(found) == len(TILE_NAMES) else {}


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
