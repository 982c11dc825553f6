"""What vrm asks of the operating system: files that are opened without being led astray."""
