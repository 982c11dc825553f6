"""vrm: your own cluster inside somebody else's.

A batch job that runs your queue on its nodes with your scheduling and your placement.
"""

__version__ = "0.2.0.dev0"
