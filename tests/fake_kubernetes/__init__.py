"""A Kubernetes API server for tests: real HTTP, in a thread of its own, with the semantics of the recorded answers.

`server.py` speaks HTTP; `store.py` has the objects, their versions and their history; `kinds.py` the kinds that there
are; `checks.py` what is refused; `patches.py` the patches; `errors.py` the answers that refuse. `cluster.py` plays what
else a cluster has: nodes, a scheduler, kubelets.
"""
