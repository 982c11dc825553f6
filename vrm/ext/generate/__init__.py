"""Generated workloads: mixes of programs, the model of Lublin and Feitelson, and models of other workloads."""
