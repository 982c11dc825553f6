"""An urgent job starts now, or by a time: other jobs lend cores, stand still, or wait again for it."""
