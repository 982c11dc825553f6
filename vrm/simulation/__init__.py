"""Virtual time: the policies of the live manager on recorded and invented workloads."""
