"""The process of a node (`gpuloom node join`): this machine's GPUs, monitor, runs and lease, served to a head.

| file | holds |
|---|---|
| `home` | what lies where in its home directory, and who holds it |
| `dial` | a connection to the head |
| `serve` | what the head says is done here, what happens here is told |
| `process` | all parts joined, from start to leave |

May import: core, executors, agent, fleet, sharing.
"""
