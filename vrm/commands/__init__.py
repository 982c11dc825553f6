"""Groups of commands, a file each: arguments, calls, what is printed. As thin as `vrm/cli.py`."""
