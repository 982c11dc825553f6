"""What vrm has in C is built with the compiler of the user."""
