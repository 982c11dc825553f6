"""Groups of commands, one module each: arguments, calls and output. They contain no other logic, like
`vrm/cli.py`."""
