"""How jobs share nodes: lent cores, devices, and the capacity that is left."""
