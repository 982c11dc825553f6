"""`python -m vrm.session.worker DIRECTORY`: what the queue of a session says that began before 1.0."""

import runpy

if __name__ == "__main__":
    runpy.run_module("vrm.ext.session.worker", run_name="__main__", alter_sys=True)
