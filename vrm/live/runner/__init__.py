"""The program that vrm runs on each other node: programs of jobs are started by it, and its agent watches the node."""
