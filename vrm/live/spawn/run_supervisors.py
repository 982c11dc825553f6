"""The program that `Spawner` runs: it imports `supervisor.py` as a module, so that Python compiles that file once for
all runs and not in each run, which would leave one megabyte more memory in every supervisor."""

import os
import sys

if __name__ == "__main__":
    _HERE = os.path.dirname(os.path.abspath(__file__))
    sys.path += [_HERE, os.path.join(os.path.dirname(_HERE), "runner")]
    from supervisor import main
    sys.exit(main(sys.argv[1:]))
