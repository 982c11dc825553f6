"""Workloads that are drawn: mixes of programs, the model of Lublin and Feitelson, models of other workloads."""
