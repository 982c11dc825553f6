"""What jobs share of nodes: lent cores, devices, room."""
