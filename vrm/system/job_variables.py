"""The variables that tell programs where in a script job they run. This module must load fast, since programs of
scripts import it."""

FOLDER = "VRM_STEPS"
"""The directory of the job's own files."""

NODE = "VRM_NODE"
"""The one of the job's nodes on which the program runs."""

STEP = "VRM_STEP"
"""The part of the script in which the program runs: the mark of the run, the job's id and the part's number,
`RUN:JOB.NUMBER`."""
