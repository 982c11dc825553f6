"""Placement policies: on which cores of which nodes jobs run."""
