"""Simulations in virtual time: the policies of the live manager on recorded and synthetic workloads.

```python
from vrm.api import Machine, Rules, simulate
outcome = simulate("trace.swf.gz", rules=Rules(algorithm="WFP3", backfill="easy"))
outcome = simulate("queue", Machine.of(nodes=16, sockets=2, cores=8))
print(outcome.summary["average_wait"])
```
"""
