"""The variables by which programs know where in a script job they are. Quick to load: programs of scripts do it."""

FOLDER = "VRM_STEPS"
"""The directory of the job's own files."""

NODE = "VRM_NODE"
"""On which of the job's nodes they are."""

STEP = "VRM_STEP"
"""In which part of the script: the mark of the run, the job's id and the part's number, `RUN:JOB.NUMBER`."""
