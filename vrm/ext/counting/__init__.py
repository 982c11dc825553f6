"""EASY and other queues where counts of free nodes or cores say all: long traces, and replays, sooner."""
