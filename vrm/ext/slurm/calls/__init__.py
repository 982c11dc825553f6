"""The way of a batch system's command to the manager and back: the client, the socket, and the requests that the
manager answers."""
