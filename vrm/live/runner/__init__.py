"""The program that vrm runs on each other node: it starts programs of jobs there, and its agent watches the node."""
