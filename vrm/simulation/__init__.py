"""Virtual time: the policies of the live manager on recorded and invented workloads.

    from vrm.simulation import simulate
    outcome = simulate("trace.swf.gz", algorithm="WFP3", backfill="easy")
    print(outcome.summary["average_wait"])
"""

from vrm.simulation.library import Outcome, Submission, simulate

__all__ = ["Outcome", "Submission", "simulate"]
