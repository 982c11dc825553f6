"""The manager on the wall clock: allocation, launching, markers, journal, the loop."""
