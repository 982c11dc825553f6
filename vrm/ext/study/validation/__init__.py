"""A live run simulated again: how near the simulation is."""
