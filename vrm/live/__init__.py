"""The manager that runs jobs in real time: allocation, launching, marker files, journal and event loop."""
