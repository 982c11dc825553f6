"""Commands for studies, one module each."""
