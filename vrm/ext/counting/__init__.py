"""Simulations of long traces where counts of free nodes or cores say all: the same schedule, sooner."""
