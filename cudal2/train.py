"""``python -m cudal2.train``: the same as ``python -m cudal2 train``."""

from __future__ import annotations

import sys

from cudal2.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
