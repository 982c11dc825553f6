"""How vrm gets onto other nodes: a file for each transport."""
