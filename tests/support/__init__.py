"""What tests share: sites, machines, stand-ins, and plain loops that define behaviour."""
