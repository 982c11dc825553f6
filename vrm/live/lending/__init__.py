"""Jobs that lend cores while they run: how their processes follow (docs/dev/lending-protocol.md)."""
