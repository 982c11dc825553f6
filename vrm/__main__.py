"""`python -m vrm`: the command line."""

import sys

from vrm.cli import main

if __name__ == "__main__":
    sys.exit(main())
