"""When waiting jobs will start, why not now, and what would be better: a run that is copied and goes
on in virtual time."""
