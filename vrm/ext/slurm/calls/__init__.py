"""How a command of a batch system reaches the manager and is answered: the client, the socket, what can be asked."""
