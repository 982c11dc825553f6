"""What was measured of programs."""
