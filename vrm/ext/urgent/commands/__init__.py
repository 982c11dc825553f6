"""What `vrm submit --urgent` does."""
