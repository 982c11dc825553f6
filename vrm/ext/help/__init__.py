"""Help that needs more than vrm itself: the documentation, what packages add, and completion in a shell."""
