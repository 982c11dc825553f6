"""The program behind `Spawner`: `supervisor.py` as a module, so that Python compiles it once for all runs
and not for each, which would leave a megabyte in every supervisor."""

import os
import sys

if __name__ == "__main__":
    _HERE = os.path.dirname(os.path.abspath(__file__))
    sys.path += [_HERE, os.path.join(os.path.dirname(_HERE), "runner")]
    from supervisor import main
    sys.exit(main(sys.argv[1:]))
