"""``python -m cudal2``: the command line."""

import sys

from cudal2.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
