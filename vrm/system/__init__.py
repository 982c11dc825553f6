"""What vrm needs from the operating system: files, processes, transports to nodes, plugins and terminal output."""
