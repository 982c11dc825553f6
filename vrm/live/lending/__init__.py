"""Jobs that lend cores while they run: how their processes follow (docs/reference/lending-protocol.md)."""
