"""What people read: state tables, metrics, per-job records."""
