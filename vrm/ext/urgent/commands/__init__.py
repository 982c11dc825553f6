"""The command line of urgent jobs: `vrm submit --urgent`."""
