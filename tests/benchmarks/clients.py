"""How long the workflows of tests/clients take on real Slurm and on vrm, one client after the other:

    python tests/benchmarks/clients.py .venv-clients        # some minutes; as root, on the test cluster

Both run at the same time on different nodes of one machine. Prints rows of the table in docs/slurm.md.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "clients")]

from test_clients import CLIENTS, run_all  # noqa: E402

from testbed import Testbed  # noqa: E402


def main() -> None:
    """Run all, and print the table."""
    folder = Path(tempfile.mkdtemp(prefix="vrm-clients-"))
    folder.chmod(0o755)
    try:
        with Testbed(5, accounting=True, directory=folder / "cluster", accounts=["alice"]) as testbed:
            results = run_all(testbed, Path(sys.argv[1]).absolute() / "bin" / "python", together=1)
        print("| client | Slurm, s | vrm, s |\n|---|---|---|")
        for client in CLIENTS:
            print(f"| {client} | {results['slurm'][client].seconds:.1f} | {results['vrm'][client].seconds:.1f} |")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
